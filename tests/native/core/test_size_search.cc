// Tests paths that silently drop long datagrams: the size that they carry is found and used, and larger sizes are tried
// again later.
#include <algorithm>

#include "native/core/partial_segments.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

constexpr u64 kBytes = 8 << 20;
constexpr i64 kMs = 1'000'000;
constexpr u16 kLong = 8972, kShort = 1472;

// A transfer of 8 MB over four paths that carry datagrams of 8,972 bytes. Datagrams for which `narrow` is true are
// dropped if they are longer than bytes_max.
struct Bench {
  explicit Bench(u16 segment_bytes = kLong)
      : pair(weft::test::shipped_config(), 4, segment_bytes, 1 << 20, true), sent(weft::test::pattern(kBytes, 1)) {
    CHECK(pair.opened);
    while (pair.exchange()) {
    }
    begin();
  }
  void begin() {
    buffer.assign(kBytes, 0);
    CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
    due_bytes += kBytes;
  }
  bool drops(const Wired& packet) {
    const std::size_t bytes = packet.header.size() + packet.payload.size();
    const bool dropped = narrow && narrow(packet) && bytes > bytes_max;
    swallowed += dropped ? 1 : 0;
    const bool data = packet.to == 1 && packet.type() == wire::Type::data;
    data_sent += data ? 1 : 0;
    if (data && !dropped) longest = std::max(longest, bytes);
    return dropped;
  }
  void run_to(u64 bytes, i64 limit_ns = 60'000 * kMs) {
    CHECK(pair.run([&] { return pair.received_bytes(1) >= bytes; }, [&](const Wired& packet) { return drops(packet); },
                   limit_ns));
  }
  void run_for(i64 ns) {
    const i64 until_ns = pair.now_ns + ns;
    static_cast<void>(
        pair.run([&] { return pair.now_ns >= until_ns; }, [&](const Wired& packet) { return drops(packet); }));
  }
  void finish(i64 limit_ns = 60'000 * kMs) {
    run_to(due_bytes, limit_ns);
    CHECK(buffer == sent);
    CHECK(pair.run([&] { return !pair.stack[0].flow(pair.flow[0])->tx.has_outstanding(); },
                   [&](const Wired& packet) { return drops(packet); }, 1000 * kMs));
    for (int end = 0; end < 2; ++end) CHECK_EQUAL(pair.stack[end].counters().malformed, 0);
  }
  PathSet& paths(int end = 0) { return pair.stack[end].peer(pair.peer[end])->paths(); }
  int usable() {
    int count = 0;
    for (std::size_t i = 0; i < paths().count(); ++i) count += paths().path(i).usable ? 1 : 0;
    return count;
  }

  Pair pair;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
  std::function<bool(const Wired&)> narrow;
  std::size_t bytes_max = kShort, longest = 0;
  u64 due_bytes = 0, swallowed = 0, data_sent = 0;
};

constexpr u64 segments_of(u64 bytes, u16 datagram_bytes) {
  const u64 payload = wire::segment_payload_bytes(datagram_bytes);
  return (bytes + payload - 1) / payload;
}

}  // namespace

TEST(size_search__a_transfer_goes_on_where_all_paths_swallow_long_datagrams) {
  for (const int from : {-1, 0, 1}) {
    Bench bench;
    bench.run_to(kBytes / 4);
    CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
    bench.narrow = [&](const Wired& packet) { return from < 0 || packet.to == 1 - from; };
    const i64 start_ns = bench.pair.now_ns;
    const u64 sent_before = bench.data_sent;
    bench.finish();
    // If only the return direction is narrow, the sender notices nothing, because acknowledgments are short.
    CHECK_EQUAL(bench.paths().segment_bytes(), from == 1 ? kLong : kShort);
    CHECK(bench.pair.now_ns - start_ns < 1000 * kMs);
    // Segments of the old size are resent as fragments; later segments have the new size.
    CHECK(bench.data_sent - sent_before < 2 * segments_of(kBytes, kShort));
    bench.run_for(20 * kMs);  // lets the last probes arrive
    CHECK_EQUAL(bench.usable(), 4);
  }
}

TEST(size_search__the_longest_that_a_path_carries_is_taken) {
  for (const u16 carried : {u16{4052}, u16{3000}, u16{1300}, u16{1240}, u16{600}}) {
    Bench bench;
    bench.run_to(kBytes / 8);
    bench.bytes_max = carried;
    bench.narrow = [](const Wired&) { return true; };
    bench.finish();
    CHECK(bench.paths().segment_bytes() <= carried);
    const u16 expected = carried == 4052   ? 4052
                         : carried == 3000 ? 1472
                         : carried == 1300 ? 1252
                         : carried == 1240 ? 1232
                                           : 576;
    CHECK_EQUAL(bench.paths().segment_bytes(), expected);
  }
}

TEST(size_search__where_one_path_carries_long_ones_it_is_used_alone) {
  Bench bench;
  bench.run_to(kBytes / 4);
  bench.narrow = [](const Wired& packet) { return packet.path != 2; };
  bench.finish();
  CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
  CHECK_EQUAL(bench.usable(), 1);
  CHECK(bench.paths().path(2).usable);
  // Small datagrams pass on the other paths all the time, but do not make those paths usable.
  const i64 events = bench.pair.events(0, Event::Kind::path_up);
  bench.run_for(5000 * kMs);
  CHECK_EQUAL(bench.pair.events(0, Event::Kind::path_up), 0);
  CHECK(events <= 3);
  bench.narrow = nullptr;
  bench.run_for(3000 * kMs);
  CHECK_EQUAL(bench.usable(), 4);
}

TEST(size_search__the_size_comes_up_again_when_paths_heal) {
  Bench bench;
  bench.run_to(kBytes / 4);
  bench.narrow = [](const Wired&) { return true; };
  bench.finish();
  bench.run_for(60'000 * kMs);
  CHECK_EQUAL(bench.paths().segment_bytes(), kShort);  // larger sizes were tried without success
  bench.narrow = nullptr;
  bench.run_for(700'000 * kMs);
  CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
  bench.longest = 0;
  bench.begin();
  bench.finish();
  CHECK_EQUAL(bench.longest, wire::kDataBytes + wire::segment_payload_bytes(kLong));
}

TEST(size_search__the_size_comes_up_when_half_of_the_paths_carry_it) {
  for (const int narrow_paths : {1, 2, 3}) {
    Bench bench;
    bench.run_to(kBytes / 4);
    bench.narrow = [](const Wired&) { return true; };
    bench.finish();
    bench.narrow = [=](const Wired& packet) { return packet.path < narrow_paths; };
    const u64 swallowed = bench.swallowed;
    bench.run_for(700'000 * kMs);
    const bool raised = narrow_paths <= 2;
    CHECK_EQUAL(bench.paths().segment_bytes(), raised ? kLong : kShort);
    CHECK_EQUAL(bench.usable(), raised ? 4 - narrow_paths : 4);
    bench.begin();
    bench.finish();
    CHECK(bench.swallowed - swallowed < 3000);  // only probes, no segments
    bench.narrow = nullptr;
    bench.run_for(700'000 * kMs);
    CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
    CHECK_EQUAL(bench.usable(), 4);
  }
}

// A single usable path must not determine the segment size of three others that are silent for now.
TEST(size_search__one_path_alone_does_not_raise_the_size_for_all) {
  Bench bench;
  bench.run_to(kBytes / 4);
  bench.narrow = [](const Wired&) { return true; };
  bench.finish();
  CHECK_EQUAL(bench.paths().segment_bytes(), kShort);
  bench.bytes_max = 0;
  const i64 until_ns = bench.pair.now_ns + 60'000 * kMs;
  bench.narrow = [&](const Wired& packet) {
    const bool is_long = packet.header.size() + packet.payload.size() > kShort;
    return packet.path != 0 && (is_long || bench.pair.now_ns < until_ns);
  };
  bench.begin();
  bench.run_for(60'000 * kMs);
  CHECK_EQUAL(bench.paths().segment_bytes(), kShort);
  bench.finish();
  bench.run_for(5'000 * kMs);
  CHECK_EQUAL(bench.usable(), 4);
}

// Too few usable paths do not postpone the next attempt to raise the size.
TEST(size_search__silent_paths_do_not_put_off_the_next_raise) {
  Bench bench;
  bench.run_to(kBytes / 4);
  bench.narrow = [](const Wired&) { return true; };
  bench.finish();
  CHECK_EQUAL(bench.paths().segment_bytes(), kShort);
  bench.bytes_max = 0;
  bench.narrow = [&](const Wired& packet) { return packet.path != 0; };
  bench.begin();
  for (int i = 0; i < 15; ++i) bench.run_for(60'000 * kMs);
  CHECK_EQUAL(bench.usable(), 1);
  bench.narrow = nullptr;
  const i64 back_ns = bench.pair.now_ns;
  bench.begin();
  while (bench.paths().segment_bytes() != kLong && bench.pair.now_ns < back_ns + 60'000 * kMs) bench.run_for(kMs);
  CHECK_EQUAL(bench.usable(), 4);
  CHECK(bench.pair.now_ns < back_ns + 60'000 * kMs);
}

// A pause of all paths must not shrink the size, although one of them carries only short datagrams.
TEST(size_search__a_pause_beside_a_narrow_path_leaves_the_size) {
  Bench bench;
  bench.narrow = [](const Wired& packet) { return packet.path == 3; };
  bench.finish();
  CHECK_EQUAL(bench.usable(), 3);
  bench.begin();
  bench.run_to(kBytes * 3 / 2);
  bool paused = true;
  bench.bytes_max = 0;
  bench.narrow = [&](const Wired& packet) {
    const bool is_long = packet.header.size() + packet.payload.size() > kShort;
    return packet.path == 3 ? is_long : paused;
  };
  while (paused && bench.pair.now_ns < 60'000 * kMs) {
    bench.run_for(kMs / 10);
    paused = bench.usable() != 0;
  }
  CHECK(!paused);
  bench.finish();
  CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
  CHECK_EQUAL(bench.usable(), 3);
}

// Short messages arrive, so that the paths seem to work; the loss of long segments must be noticed nevertheless.
TEST(size_search__short_messages_in_between_hide_nothing) {
  Bench bench;
  const auto other = bench.pair.add_flow();
  const std::vector<u8> word = weft::test::pattern(8, 2);
  std::vector<std::unique_ptr<Pair::Buffer>> buffers;
  u64 message = 0;
  bench.narrow = [](const Wired&) { return true; };
  const i64 until_ns = bench.pair.now_ns + 2000 * kMs;
  while (bench.pair.received_bytes(1) < kBytes && bench.pair.now_ns < until_ns) {
    buffers.push_back(std::make_unique<Pair::Buffer>());
    Pair::Buffer& buffer = *buffers.back();
    buffer.bytes.resize(8);
    buffer.ticket.message.store(message);
    CHECK_EQUAL(bench.pair.stack[1].post_receive(bench.pair.now_ns, other[1],
                                                 {message, buffer.bytes.data(), 8, 0, &buffer.ticket, nullptr}),
                Status::ok);
    CHECK_EQUAL(
        bench.pair.stack[0].post_send(bench.pair.now_ns, other[0], {message++, word.data(), 8, 0, nullptr, nullptr}),
        Status::ok);
    for (int i = 0; i < 4; ++i) static_cast<void>(bench.pair.exchange([&](const Wired& p) { return bench.drops(p); }));
    for (Stack& each : bench.pair.stack) each.on_timer(bench.pair.now_ns);
    bench.pair.now_ns += 20'000;
  }
  bench.finish();
  CHECK(bench.swallowed < 2 * segments_of(kBytes, kLong));
}

TEST(size_search__where_nothing_gets_through_ever_less_is_sent) {
  Bench bench;
  bench.run_to(kBytes / 4);
  bench.bytes_max = 0;
  bench.narrow = [](const Wired&) { return true; };
  bench.run_for(2000 * kMs);
  const u64 before = bench.swallowed;
  bench.run_for(5000 * kMs);
  CHECK(bench.swallowed - before < 200);  // probes and retries: at most one per second on each of four paths
  bench.narrow = nullptr;
  bench.finish(10'000 * kMs);
}

TEST(size_search__lost_datagrams_beside_long_ones_only_delay) {
  Bench bench;
  Random random(7);
  bench.run_to(kBytes / 4);
  bench.narrow = [&](const Wired& packet) {
    return packet.header.size() + packet.payload.size() > kShort || random.next() % 20 == 0;
  };
  bench.bytes_max = 0;
  bench.finish();
  CHECK(bench.paths().segment_bytes() <= kShort);
}

// Loss that is independent of the size does not change it.
TEST(size_search__loss_alone_leaves_the_size_as_it_is) {
  Bench bench;
  Random random(7);
  bench.narrow = [&](const Wired&) { return random.next() % 10 == 0; };
  bench.bytes_max = 0;
  bench.finish();
  CHECK_EQUAL(bench.paths().segment_bytes(), kLong);
}

TEST(size_search__where_all_is_well_nothing_long_is_probed) {
  Bench bench;
  u64 padded = 0;
  bench.narrow = [&](const Wired& packet) {
    padded += packet.type() == wire::Type::probe && packet.header.size() + packet.payload.size() > 100 ? 1 : 0;
    return false;
  };
  bench.finish();
  bench.run_for(100'000 * kMs);
  CHECK(padded <= 4);  // probes that the loss policy sends at the end of data
  CHECK_EQUAL(bench.pair.events(0, Event::Kind::segment_size), 0);
}

// Tests of fragments.

namespace {

// Makes data packets for end 1 of a pair, which waits for a message of 5,000 bytes of which none has arrived.
struct Fragments {
  Fragments() : pair(StackConfig{}, 4, kLong, 1 << 20, true), sent(weft::test::pattern(5000, 3)), buffer(5000) {
    CHECK_EQUAL(pair.receive(1, buffer.data(), 5000, &ticket), Status::ok);
  }
  Wired fragment(u64 seq, u16 segment_at, u16 segment_bytes, u16 from, u16 bytes) {
    Wired packet;
    packet.to = 1;
    packet.header.resize(wire::kDataBytes);
    wire::Common common;
    common.token = Pair::kToken[1];
    common.flow = pair.flow[1];
    common.body_bytes = bytes;
    wire::Data data;
    data.seq = seq;
    data.sent_ns = pair.now_ns;
    data.message_bytes = 5000;
    data.offset_bytes = u64{segment_at} + from;
    data.fragment_offset = from;
    data.segment_bytes = segment_bytes;
    const u64 begin = std::min<u64>(data.offset_bytes, sent.size()), end = std::min<u64>(begin + bytes, sent.size());
    packet.payload.assign(sent.begin() + static_cast<long>(begin), sent.begin() + static_cast<long>(end));
    packet.payload.resize(bytes);
    wire::encode_data(packet.header.data(), common, data);
    return packet;
  }
  FlowReceiver& receiver() { return pair.stack[1].flow(pair.flow[1])->rx; }
  i64 malformed() { return pair.stack[1].counters().malformed; }

  Pair pair;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
};

}  // namespace

TEST(fragments__a_segment_is_received_when_all_of_it_is_there) {
  Fragments bench;
  bench.pair.give(bench.fragment(0, 0, 4000, 1408, 1408));
  bench.pair.give(bench.fragment(0, 0, 4000, 0, 1408));
  bench.pair.give(bench.fragment(0, 0, 4000, 0, 1408));    // the same fragment again
  bench.pair.give(bench.fragment(0, 0, 4000, 800, 1000));  // some of the same bytes, split differently
  CHECK_EQUAL(bench.pair.received_bytes(1), 0u);
  CHECK_EQUAL(bench.receiver().cumulative_seq(), 0u);
  bench.pair.give(bench.fragment(0, 0, 4000, 2816, 1184));
  CHECK_EQUAL(bench.pair.received_bytes(1), 4000u);
  CHECK_EQUAL(bench.receiver().cumulative_seq(), 1u);
  bench.pair.give(bench.fragment(0, 0, 4000, 2816, 1184));  // a late duplicate changes nothing
  CHECK_EQUAL(bench.pair.received_bytes(1), 4000u);
  bench.pair.give(bench.fragment(1, 4000, 1000, 0, 504));
  CHECK_EQUAL(bench.pair.events(1, Event::Kind::stripe_placed), 0);
  bench.pair.give(bench.fragment(1, 4000, 1000, 504, 496));
  CHECK_EQUAL(bench.pair.events(1, Event::Kind::stripe_placed), 1);
  CHECK(bench.buffer == bench.sent);
  // From here on, nothing may be written to the buffer.
  std::fill(bench.buffer.begin(), bench.buffer.end(), u8{0x5A});
  bench.pair.give(bench.fragment(1, 4000, 1000, 0, 504));
  bench.pair.give(bench.fragment(7, 4000, 1000, 0, 504));
  CHECK(std::all_of(bench.buffer.begin(), bench.buffer.end(), [](u8 byte) { return byte == 0x5A; }));
}

TEST(fragments__a_segment_that_comes_whole_meanwhile_counts_once) {
  Fragments bench;
  bench.pair.give(bench.fragment(0, 0, 4000, 0, 1408));
  bench.pair.give(bench.fragment(0, 0, 0, 0, 4000));
  CHECK_EQUAL(bench.pair.received_bytes(1), 4000u);
  bench.pair.give(bench.fragment(0, 0, 4000, 1408, 2592));
  CHECK_EQUAL(bench.pair.received_bytes(1), 4000u);
  CHECK_EQUAL(bench.pair.events(1, Event::Kind::stripe_placed), 0);
}

TEST(fragments__what_does_not_fit_together_is_refused) {
  Fragments bench;
  const auto refuses = [&](const Wired& packet) {
    const std::vector<u8> before = bench.buffer;
    const i64 count = bench.malformed();
    bench.pair.give(packet);
    CHECK_EQUAL(bench.malformed(), count + 1);
    CHECK(bench.buffer == before);
    CHECK_EQUAL(bench.pair.received_bytes(1), 0u);
  };
  bench.pair.give(bench.fragment(0, 0, 4000, 0, 1408));
  refuses(bench.fragment(0, 0, 4008, 1408, 1408));    // claims a longer segment
  refuses(bench.fragment(0, 8, 4000, 1408, 1408));    // claims another offset of the segment
  refuses(bench.fragment(2, 0, 4000, 3000, 1408));    // ends beyond its segment
  refuses(bench.fragment(2, 0, 4000, 1404, 1408));    // does not begin at a multiple of 8 bytes
  refuses(bench.fragment(2, 0, 4000, 0, 1404));       // does not end at a multiple of 8 bytes
  refuses(bench.fragment(2, 0, 4000, 8, 0));          // an empty fragment
  refuses(bench.fragment(2, 4000, 1008, 0, 504));     // the segment ends beyond the message
  refuses(bench.fragment(2, 0, 0, 8, 504));           // a fragment of an empty segment
  refuses(bench.fragment(2, 0, 9000, 0, 504));        // the segment is longer than any can be
  Wired packet = bench.fragment(2, 0, 4000, 8, 504);  // the segment would begin before its message
  wire::Common common;
  common.token = Pair::kToken[1];
  common.flow = bench.pair.flow[1];
  common.body_bytes = 504;
  wire::Data data;
  data.seq = 2;
  data.message_bytes = 5000;
  data.fragment_offset = 8;
  data.segment_bytes = 4000;
  wire::encode_data(packet.header.data(), common, data);
  refuses(packet);
}

TEST(fragments__more_begun_segments_than_fit_are_bounded) {
  PartialSegments partial(8908);
  CHECK_EQUAL(partial.bytes_held(), 0u);
  bool marked = false;
  for (u64 seq = 0; seq < 1000; ++seq) {
    CHECK_EQUAL(partial.on_fragment({seq, 0, 10'000, 0, 4000}, 0, 1408, &marked), PartialSegments::Outcome::fresh);
  }
  CHECK(partial.bytes_held() < 32 << 10);
  // Fragments of the newest segment are remembered; those of the oldest were forgotten.
  marked = true;
  CHECK_EQUAL(partial.on_fragment({999, 0, 10'000, 0, 4000}, 0, 1408, &marked), PartialSegments::Outcome::repeated);
  CHECK_EQUAL(partial.on_fragment({0, 0, 10'000, 0, 4000}, 0, 1408, &marked), PartialSegments::Outcome::fresh);
  marked = false;
  CHECK_EQUAL(partial.on_fragment({999, 0, 10'000, 0, 4000}, 1408, 2592, &marked), PartialSegments::Outcome::complete);
  CHECK(marked);
}
