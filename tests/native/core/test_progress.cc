// Tests that a flow without progress ends within the silence limit with the cause, that a flow that waits only
// because the remote program posts no receive does not end, and that messages arrive even if most packets are lost.
#include <algorithm>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr weft::core::u64 kSeeds = 1;  // fewer seeds, because with sanitizers the test is ten times slower
#else
constexpr weft::core::u64 kSeeds = 3;
#endif

constexpr i64 kMs = 1'000'000;
constexpr u64 kBytes = 100'000;

struct Bench {
  explicit Bench(const StackConfig& config = weft::test::shipped_config())
      : pair(config, 4, 8972, 1 << 20, true),
        silence_ns(config.peer_silence_ns),
        sent(weft::test::pattern(kBytes, 1)),
        buffer(kBytes) {
    CHECK(pair.opened);
    while (pair.exchange()) {
    }
  }
  void receive() { CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok); }
  void send() { CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok); }
  void look() {
    for (int end = 0; end < 2; ++end) {
      for (Event event; pair.stack[end].poll_event(&event);) {
        if (event.kind == Event::Kind::send_done) ++done;
        if (event.kind == Event::Kind::flow_stuck) stuck_ns[end].push_back(pair.now_ns);
        if (event.kind == Event::Kind::flow_failed) failed[end] = event.status;
      }
    }
  }
  void run_for(i64 ns, const std::function<bool(const Wired&)>& drops = nullptr) {
    const i64 until_ns = pair.now_ns + ns;
    static_cast<void>(pair.run([&] { return look(), pair.now_ns >= until_ns; }, drops, ns + kMs));
    pair.now_ns = std::max(pair.now_ns, until_ns);  // skip time in which nothing happens
    for (Stack& each : pair.stack) each.on_timer(pair.now_ns);
    look();
  }
  bool idle() const { return stuck_ns[0].empty() && stuck_ns[1].empty() && failed[0] == Status::ok; }

  Pair pair;
  i64 silence_ns;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
  int done = 0;
  std::vector<i64> stuck_ns[2];
  Status failed[2] = {};
};

bool is(const Wired& packet, wire::Type type) { return packet.type() == type; }

}  // namespace

// All segments are lost, but probes are answered, so that peer and paths seem to work.
TEST(progress__a_sender_whose_segments_vanish_fails_with_that_cause) {
  for (const wire::Type type : {wire::Type::data, wire::Type::ack}) {
    Bench bench;
    bench.receive();
    bench.send();
    bench.run_for(bench.silence_ns - 1000 * kMs, [&](const Wired& packet) { return is(packet, type); });
    CHECK(bench.idle());
    bench.run_for(2000 * kMs, [&](const Wired& packet) { return is(packet, type); });
    CHECK_EQUAL(bench.stuck_ns[0].size(), 1u);
    CHECK_EQUAL(bench.failed[0], Status::no_progress);
    CHECK_EQUAL(bench.failed[1], Status::no_progress);  // the other end reports the same status
  }
}

TEST(progress__so_does_a_receiver_that_cannot_make_itself_known) {
  for (const bool unanswered : {false, true}) {
    Bench bench;
    const auto drops = [&](const Wired& packet) {
      return is(packet, unanswered ? wire::Type::advert_ack : wire::Type::advert);
    };
    bench.receive();
    bench.run_for(bench.silence_ns - 1000 * kMs, drops);
    CHECK(bench.idle());
    bench.run_for(3000 * kMs, drops);
    CHECK_EQUAL(bench.failed[1], Status::no_progress);
    CHECK_EQUAL(bench.failed[0], Status::no_progress);
  }
}

TEST(progress__who_waits_for_the_other_ends_caller_is_not_stuck) {
  Bench receiver, sender;
  receiver.receive();
  receiver.run_for(10 * receiver.silence_ns);
  CHECK(receiver.idle());
  receiver.send();
  receiver.run_for(1000 * kMs);
  CHECK_EQUAL(receiver.done, 1);
  CHECK(receiver.buffer == receiver.sent);
  sender.send();
  sender.run_for(10 * sender.silence_ns);
  CHECK(sender.idle());
  sender.receive();
  sender.run_for(1000 * kMs);
  CHECK_EQUAL(sender.done, 1);
  CHECK(sender.idle());
}

// The receiver posts no receives and has no blocks left for short messages, so the sender has to wait.
TEST(progress__who_waits_for_room_is_not_stuck) {
  StackConfig config = weft::test::shipped_config();
  config.eager_blocks = 4;
  Bench bench(config);
  for (int i = 0; i < 12; ++i) CHECK_EQUAL(bench.pair.send(0, bench.sent.data(), 4000), Status::ok);
  bench.run_for(5 * bench.silence_ns);
  CHECK(bench.idle());
  CHECK(bench.pair.stack[0].flow(bench.pair.flow[0])->tx.has_outstanding());
  CHECK(bench.pair.stack[0].flow(bench.pair.flow[0])->tx.counters().segments_held > 0);
}

TEST(progress__slow_progress_is_progress) {
  Bench bench;
  bench.receive();
  bench.send();
  // Let one segment pass every three seconds, for longer than the silence limit.
  i64 next_ns = 0;
  bench.run_for(2 * bench.silence_ns, [&](const Wired& packet) {
    if (!is(packet, wire::Type::data)) return false;
    const bool passes = bench.pair.now_ns >= next_ns;
    if (passes) next_ns = bench.pair.now_ns + 3000 * kMs;
    return !passes;
  });
  CHECK(bench.idle());
  Flow& flow = *bench.pair.stack[0].flow(bench.pair.flow[0]);
  CHECK(bench.done == 1 || bench.pair.now_ns - flow.last_progress_ns() < bench.silence_ns);
}

TEST(progress__an_owner_that_judges_is_told_every_quarter_and_decides) {
  StackConfig config = weft::test::shipped_config();
  config.external_failure_detector = true;
  Bench bench(config);
  bench.receive();
  bench.send();
  const auto drops = [](const Wired& packet) { return is(packet, wire::Type::data); };
  bench.run_for(2 * bench.silence_ns, drops);
  CHECK_EQUAL(bench.failed[0], Status::ok);
  CHECK(bench.stuck_ns[0].size() >= 3 && bench.stuck_ns[0].size() <= 5);
  for (std::size_t i = 1; i < bench.stuck_ns[0].size(); ++i) {
    CHECK(bench.stuck_ns[0][i] - bench.stuck_ns[0][i - 1] >= bench.silence_ns / 4);
  }
  // The flow was not ended, so it continues when segments pass again.
  bench.run_for(3000 * kMs);
  CHECK_EQUAL(bench.done, 1);
  CHECK(bench.buffer == bench.sent);
  bench.receive();
  bench.send();
  bench.run_for(bench.silence_ns + 1000 * kMs, drops);
  bench.pair.stack[0].give_up_flow(bench.pair.now_ns, bench.pair.flow[0], Status::no_progress);
  bench.run_for(1000 * kMs);
  CHECK_EQUAL(bench.failed[0], Status::no_progress);
  CHECK_EQUAL(bench.failed[1], Status::no_progress);
}

TEST(progress__an_advertisement_is_said_again_at_bounded_intervals) {
  StackConfig config = weft::test::shipped_config();
  config.external_failure_detector = true;
  Bench bench(config);
  std::vector<i64> said_ns;
  bench.receive();
  bench.run_for(60'000 * kMs, [&](const Wired& packet) {
    if (is(packet, wire::Type::advert)) said_ns.push_back(bench.pair.now_ns);
    return is(packet, wire::Type::advert);
  });
  CHECK(said_ns.size() > 60 && said_ns.size() < 1000);
  for (std::size_t i = 1; i < said_ns.size(); ++i) CHECK(said_ns[i] - said_ns[i - 1] <= config.rto_ns_max + kMs);
}

// Of acknowledgments, advertisements, probes and replies, one in ten arrives, in each direction.
TEST(progress__messages_get_through_though_nine_of_ten_short_packets_are_lost) {
  for (u64 seed = 1; seed <= kSeeds; ++seed) {
    for (const u64 bytes : {u64{100}, kBytes, u64{4} << 20}) {
      Bench bench;
      Random random(seed);
      const auto drops = [&](const Wired& packet) {
        return packet.header.size() + packet.payload.size() <= 300 && random.uniform() < 0.9;
      };
      bench.sent = weft::test::pattern(bytes, seed);
      for (int message = 0; message < 5; ++message) {
        bench.buffer.assign(bytes, 0);
        ReceiveTicket ticket;
        CHECK_EQUAL(bench.pair.receive(1, bench.buffer.data(), bytes, &ticket), Status::ok);
        CHECK_EQUAL(bench.pair.send(0, bench.sent.data(), bytes), Status::ok);
        CHECK(bench.pair.run([&] { return bench.look(), bench.done > message; }, drops, 60'000 * kMs));
        CHECK(bench.buffer == bench.sent);
      }
      CHECK(bench.idle());
    }
  }
}
