// Compares the send ledger with a plain map: states, bytes in flight, send order, resend order, and freed memory.
#include <deque>
#include <map>
#include <vector>

#include "native/core/random.h"
#include "native/core/send_ledger.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr std::size_t kPaths = 3;

struct Model {
  struct Segment {
    i64 bytes;
    u8 path;
    SentSegment::State state;
  };
  std::map<u64, Segment> segments;  // from the cumulative position on
  std::deque<u64> order[kPaths];
  std::deque<u64> lost;
  i64 inflight_bytes = 0;

  static void take(std::deque<u64>* from, u64 seq) {
    for (auto at = from->begin(); at != from->end(); ++at) {
      if (*at != seq) continue;
      from->erase(at);
      return;
    }
    CHECK(false);
  }
};

struct Bench {
  SlabPool pool{sizeof(SendLedger::Slab), 1024};
  SendLedger ledger{&pool};
  SegmentList order[kPaths];
  Model model;
  Random random;
  i64 now_ns = 0;
  explicit Bench(u64 seed) : random(seed) {}

  bool append() {
    if (!ledger.reserve()) return false;
    const auto path = static_cast<u8>(random.next() % kPaths);
    const auto bytes = static_cast<u16>(random.next() % 9000);
    ++now_ns;
    const u64 seq =
        ledger.append(&order[path], now_ns, path, static_cast<u16>(now_ns), static_cast<u64>(now_ns), bytes);
    model.segments[seq] = {bytes, path, SentSegment::in_flight};
    model.order[path].push_back(seq);
    model.inflight_bytes += bytes;
    return true;
  }
  void lose(u8 path) {
    if (model.order[path].empty()) return;
    const u64 seq = model.order[path].front();
    ledger.on_lost(&order[path], seq);
    model.order[path].pop_front();
    model.lost.push_back(seq);
    model.segments[seq].state = SentSegment::lost;
    model.inflight_bytes -= model.segments[seq].bytes;
  }
  void resend() {
    if (model.lost.empty()) return;
    const u64 seq = model.lost.front();
    CHECK_EQUAL(ledger.first_lost(), seq);
    const auto path = static_cast<u8>(random.next() % kPaths);
    ledger.on_resent(&order[path], seq, ++now_ns, path);
    model.lost.pop_front();
    model.order[path].push_back(seq);
    Model::Segment& segment = model.segments[seq];
    segment.path = path;
    segment.state = SentSegment::in_flight;
    model.inflight_bytes += segment.bytes;
  }
  void acknowledge(u64 seq) {
    Model::Segment& segment = model.segments[seq];
    CHECK_EQUAL(ledger.on_acked(&order[segment.path], seq), segment.state != SentSegment::acked);
    if (segment.state == SentSegment::in_flight) {
      Model::take(&model.order[segment.path], seq);
      model.inflight_bytes -= segment.bytes;
    } else if (segment.state == SentSegment::lost) {
      Model::take(&model.lost, seq);
    }
    segment.state = SentSegment::acked;
  }
  void advance() {
    ledger.advance();
    while (!model.segments.empty() && model.segments.begin()->second.state == SentSegment::acked) {
      model.segments.erase(model.segments.begin());
    }
  }
  void check_lists() {
    for (std::size_t path = 0; path < kPaths; ++path) {
      u32 at = order[path].head;
      for (const u64 seq : model.order[path]) {
        CHECK_EQUAL(at, static_cast<u32>(seq));
        at = ledger.at(ledger.seq_of(at)).next;
      }
      CHECK_EQUAL(at, kNone);
    }
  }
  void check() {
    const u64 edge = model.segments.empty() ? ledger.next_seq() : model.segments.begin()->first;
    CHECK_EQUAL(ledger.cumulative_seq(), edge);
    CHECK_EQUAL(ledger.inflight_bytes(), model.inflight_bytes);
    CHECK_EQUAL(ledger.has_lost(), !model.lost.empty());
    CHECK_EQUAL(ledger.first_lost(), model.lost.empty() ? ~u64{0} : model.lost.front());
    CHECK_EQUAL(ledger.empty(), model.segments.empty());
    const u64 span = ledger.next_seq() == edge
                         ? 0
                         : (ledger.next_seq() - 1) / SendLedger::kSlabSegments - edge / SendLedger::kSlabSegments + 1;
    CHECK_EQUAL(u64{pool.blocks_in_use()}, span);
  }
};

}  // namespace

TEST(send_ledger__matches_a_map_under_random_operations) {
  for (u64 seed = 1; seed <= 8; ++seed) {
    Bench bench(seed);
    const u64 appetite = 2 + seed % 4;  // some runs grow long windows, others stay almost empty
    for (int step = 0; step < 20'000; ++step) {
      const u64 choice = bench.random.next() % 10;
      if (choice < appetite) {
        static_cast<void>(bench.append());
      } else if (choice == 6) {
        bench.lose(static_cast<u8>(bench.random.next() % kPaths));
      } else if (choice == 7) {
        bench.resend();
      } else if (!bench.ledger.empty()) {
        const u64 span = bench.ledger.next_seq() - bench.ledger.cumulative_seq();
        const u64 reach = bench.random.next() % 4 == 0 ? span : std::min<u64>(span, 5);
        bench.acknowledge(bench.ledger.cumulative_seq() + bench.random.next() % reach);
        bench.advance();
      }
      bench.check();
      if (step % 500 == 0) bench.check_lists();
    }
  }
}

TEST(send_ledger__the_window_of_numbers_is_full_at_its_bound) {
  Bench bench(1);
  for (u64 i = 0; i < kWindowSegments; ++i) CHECK(bench.append());
  CHECK(!bench.ledger.reserve());
  CHECK_EQUAL(bench.pool.blocks_in_use(), kWindowSegments / SendLedger::kSlabSegments);
  // All segments but the first are acknowledged: no memory can be freed yet.
  for (u64 seq = 1; seq < kWindowSegments; ++seq) bench.acknowledge(seq);
  bench.advance();
  CHECK(!bench.ledger.reserve());
  bench.acknowledge(0);
  bench.advance();
  bench.check();
  CHECK_EQUAL(bench.pool.blocks_in_use(), 0u);
  CHECK(bench.append());
}

TEST(send_ledger__numbers_beyond_the_window_and_beyond_32_bits_keep_their_order) {
  Bench bench(5);
  for (u64 i = 0; i < 3 * kWindowSegments; ++i) {
    CHECK(bench.append());
    if (i % 7 == 0) bench.lose(static_cast<u8>(i % kPaths));
    if (i % 14 == 0) bench.resend();
    if (bench.ledger.next_seq() - bench.ledger.cumulative_seq() > 300) {
      bench.acknowledge(bench.ledger.cumulative_seq());
      bench.advance();
    }
    if (i % 1000 == 0) bench.check_lists();
  }
  bench.check();
  CHECK_EQUAL(expand32(0x1'0000'0005u, 0xFFFF'FFFFu), 0xFFFF'FFFFu);
  CHECK_EQUAL(expand32(0xFFFF'FFF0u, 0x0000'0010u), 0x1'0000'0010u);
}

TEST(send_ledger__without_storage_nothing_is_reserved) {
  SlabPool pool(sizeof(SendLedger::Slab), 1);
  SendLedger ledger(&pool);
  SegmentList order;
  for (u64 i = 0; i < SendLedger::kSlabSegments; ++i) {
    CHECK(ledger.reserve());
    ledger.append(&order, 1, 0, 0, 0, 1);
  }
  CHECK(!ledger.reserve());
  for (u64 i = 0; i < SendLedger::kSlabSegments; ++i) ledger.on_acked(&order, i);
  ledger.advance();
  CHECK(ledger.reserve());
}
