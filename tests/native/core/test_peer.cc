// Tests keepalives: their number and paths, and that only the first answer to each counts as a sign of life.
#include <map>
#include <vector>

#include "native/core/peer.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using core::i64;
using core::Peer;
using core::PeerConfig;
using core::Shared;
using core::StackConfig;
using core::u64;
using core::u8;

constexpr i64 kSecond = 1'000'000'000;

PeerConfig four_paths() {
  PeerConfig config;
  config.path_count = 4;
  config.rtt_ns = 1'000'000;
  return config;
}

struct Sent {
  i64 at_ns;
  u8 path;
  u64 id;
};

// The packets that a peer sends from `from_ns` to `to_ns`; as a stack does, it is polled when its timeout expires.
std::vector<Sent> sent(Peer& peer, i64 from_ns, i64 to_ns) {
  std::vector<Sent> found;
  auto burst = std::make_unique<core::TxBurst>();
  for (i64 now_ns = from_ns; now_ns <= to_ns; now_ns = std::max(now_ns + 1, peer.poll_timeout())) {
    while (peer.poll_transmit(now_ns, burst.get())) {
      wire::Packet packet;
      CHECK(wire::decode(burst->headers, burst->header_bytes, 0, &packet) == wire::Verdict::ok);
      CHECK(packet.common.type == wire::Type::probe);
      found.push_back({now_ns, burst->path, packet.probe.probe_id});
    }
    if (peer.poll_timeout() == core::kNever) break;
  }
  return found;
}

struct Watched {
  StackConfig config;
  Shared shared;
  Peer peer;
  Watched() : shared(watching()), peer(&shared, 0, four_paths()) { peer.on_flow_waits(0); }
  static StackConfig watching() {
    StackConfig config;
    config.external_failure_detector = true;
    return config;
  }
};

}  // namespace

TEST(peer__keepalives_are_many_and_reach_every_path_of_a_silence) {
  Watched watched;
  const std::vector<Sent> probes = sent(watched.peer, 0, 20 * kSecond);
  std::map<u8, int> by_path;
  for (const Sent& each : probes) ++by_path[each.path];
  CHECK(!probes.empty() && probes.front().at_ns >= 5 * kSecond);  // none in the first quarter of the allowed silence
  CHECK_EQUAL(by_path.size(), 4u);
  for (const auto& [path, count] : by_path) CHECK(count >= 18);
  CHECK(probes.size() <= 4 * 33);  // their number is bounded
}

TEST(peer__the_path_heard_last_is_asked_in_each_round) {
  Watched watched;
  watched.peer.paths().on_heard(kSecond, 2);
  std::map<u8, int> by_path;
  for (const Sent& each : sent(watched.peer, kSecond, 21 * kSecond)) ++by_path[each.path];
  CHECK(by_path[2] >= 24);
}

TEST(peer__an_answer_is_life_once) {
  Watched watched;
  const std::vector<Sent> probes = sent(watched.peer, 0, 6 * kSecond);
  CHECK(!probes.empty());
  CHECK(watched.peer.quiet(6 * kSecond));
  CHECK(!watched.peer.on_keepalive_reply(6 * kSecond, 0, 0));
  CHECK(!watched.peer.on_keepalive_reply(6 * kSecond, 0, probes[0].id + 1));
  CHECK(watched.peer.quiet(6 * kSecond));
  CHECK(watched.peer.on_keepalive_reply(6 * kSecond, 0, probes[0].id));
  CHECK(!watched.peer.quiet(6 * kSecond));
  CHECK_EQUAL(watched.peer.heard_ns(), 6 * kSecond);
  CHECK(!watched.peer.on_keepalive_reply(12 * kSecond, 0, probes[0].id));  // a replay
  CHECK_EQUAL(watched.peer.heard_ns(), 6 * kSecond);
}

TEST(peer__probes_of_the_other_end_prove_nothing) {
  Watched watched;
  for (int i = 0; i < 100; ++i) {
    watched.peer.paths().on_probed_by_peer(6 * kSecond, 1);
    watched.peer.on_probe(1, {7, 0});
  }
  CHECK(watched.peer.quiet(6 * kSecond));
  CHECK_EQUAL(watched.peer.heard_ns(), -1);
}

TEST(peer__a_sign_of_life_can_be_asked_for_at_any_time) {
  Watched watched;
  watched.peer.on_flow_rests();
  watched.peer.solicit();
  auto burst = std::make_unique<core::TxBurst>();
  int count = 0;
  while (watched.peer.poll_transmit(kSecond, burst.get())) ++count;
  CHECK_EQUAL(count, 4);
}
