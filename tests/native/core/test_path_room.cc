// Tests that a flow that waits for room on a path is woken when there is room, for whatever reason.
#include <algorithm>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

constexpr u64 kBytes = 1 << 20;
constexpr i64 kRoomBytes = 64 << 10;  // bytes in flight that the only path allows; less than a window
constexpr i64 kSoonNs = 100'000'000;  // much less than 10 s, when the waiting flow would retry

// Two flows: the first has filled the path with segments that are never acknowledged; the second has data to send.
struct Bench {
  Bench() : pair(config(), 1, 1472, kRoomBytes), sent(weft::test::pattern(kBytes, 1)) {
    second = pair.add_flow();
    CHECK(pair.opened);
    for (int end = 0; end < 2; ++end) {
      Pair::Buffer& buffer = buffers[end];
      buffer.bytes.resize(kBytes);
    }
    CHECK_EQUAL(pair.receive(1, buffers[0].bytes.data(), kBytes, &buffers[0].ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
    CHECK(pair.run([&] { return path().inflight_bytes > kRoomBytes - 1472; }, swallows));
    buffers[1].ticket.message.store(0);
    CHECK_EQUAL(pair.stack[1].post_receive(pair.now_ns, second[1],
                                           {0, buffers[1].bytes.data(), kBytes, 0, &buffers[1].ticket, nullptr}),
                Status::ok);
    CHECK_EQUAL(pair.stack[0].post_send(pair.now_ns, second[0], {0, sent.data(), kBytes, 0, nullptr, nullptr}),
                Status::ok);
    CHECK(pair.run([&] { return waiter().in_path_wait; }, swallows));
    CHECK(path().inflight_bytes > kRoomBytes - 1472);
  }
  static StackConfig config() {
    StackConfig config;
    config.rto_ns_min = 200'000'000;  // so that no timer of the first flow frees the path
    return config;
  }
  const PathState& path() { return pair.stack[0].peer(pair.peer[0])->paths().path(0); }
  Flow& waiter() { return *pair.stack[0].flow(second[0]); }
  // Runs for kSoonNs, losing the first flow's segments; true if all data of the second flow arrives.
  bool second_flow_gets_through() {
    const i64 until_ns = pair.now_ns + kSoonNs;
    return pair.run([&] { return received_bytes() == kBytes || pair.now_ns >= until_ns; }, swallows) &&
           received_bytes() == kBytes && buffers[1].bytes == sent;
  }
  u64 received_bytes() { return static_cast<u64>(pair.stack[1].flow(second[1])->rx.counters().bytes_received); }

  Pair pair;
  std::array<u32, 2> second{};
  std::vector<u8> sent;
  Pair::Buffer buffers[2];
  std::function<bool(const Wired&)> swallows = [this](const Wired& packet) {
    wire::Packet decoded;
    static_cast<void>(wire::decode(packet.header.data(), packet.header.size(), packet.payload.size(), &decoded));
    return packet.type() == wire::Type::data && decoded.common.flow == pair.flow[1];
  };
};

}  // namespace

TEST(path_room__closing_the_flow_that_filled_a_path_wakes_those_that_wait) {
  Bench bench;
  bench.pair.stack[0].close_flow(bench.pair.now_ns, bench.pair.flow[0], Status::cancelled);
  CHECK_EQUAL(bench.path().inflight_bytes, 0);
  CHECK(bench.second_flow_gets_through());
}

TEST(path_room__so_does_a_close_of_the_peer) {
  for (const Status reason : {Status::cancelled, Status::message_too_long}) {
    Bench bench;
    bench.pair.stack[1].close_flow(bench.pair.now_ns, bench.pair.flow[1], reason);
    CHECK(bench.second_flow_gets_through());
  }
}

TEST(path_room__so_does_releasing_a_flow_and_its_number_may_be_used_again) {
  Bench bench;
  Pair& pair = bench.pair;
  pair.stack[0].release_flow(pair.flow[0]);
  CHECK_EQUAL(bench.path().inflight_bytes, 0);
  CHECK(pair.stack[0].wants_to_send());
  // Release the waiting flow, too; afterwards it must not be in any queue.
  pair.stack[0].release_flow(bench.second[0]);
  CHECK(!pair.stack[0].wants_to_send());
  CHECK(pair.stack[0].peer(pair.peer[0])->path_waiters().empty());
}

TEST(path_room__a_path_that_comes_back_wakes_those_that_wait) {
  Pair pair(Bench::config(), 2, 1472, kRoomBytes);
  PathSet& paths = pair.stack[0].peer(pair.peer[0])->paths();
  while (pair.exchange()) {
  }
  // Make path 1 silent and path 0 full.
  paths.on_sent(0, kRoomBytes, 1);
  CHECK(paths.on_timeout(pair.now_ns, 1, pair.now_ns + 1, -1));
  u64 probe_id = 0;
  u16 probe_bytes = 0;
  CHECK_EQUAL(paths.poll_probe(pair.now_ns, &probe_id, &probe_bytes), 1);
  const std::vector<u8> sent = weft::test::pattern(4000, 1);
  std::vector<u8> buffer(4000);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.send(0, sent.data(), sent.size()), Status::ok);
  const auto silent = [](const Wired& packet) { return packet.path == 1; };
  pair.exchange(silent);
  CHECK(pair.stack[0].flow(pair.flow[0])->in_path_wait);
  Wired probe;
  probe.to = 0;
  probe.path = 1;
  probe.header.resize(wire::kProbeBytes);
  wire::Common common;
  common.token = Pair::kPeerToken[0];
  common.flow = pair.peer[0];
  common.path = 1;
  // A probe from the peer proves nothing, because it may be a replay; the reply to our own probe proves that the
  // path works.
  common.type = wire::Type::probe;
  wire::encode_probe(probe.header.data(), common, {7, 7});
  pair.give(probe);
  CHECK(!paths.path(1).usable);
  common.type = wire::Type::probe_reply;
  wire::encode_probe(probe.header.data(), common, {probe_id, pair.now_ns});
  pair.give(probe);
  CHECK(paths.path(1).usable);
  CHECK(!pair.stack[0].flow(pair.flow[0])->in_path_wait);
  CHECK(pair.stack[0].wants_to_send());
}
