// Tests what is sent to a peer that may be a stranger before its first answer: few probes, no data, and at most three
// times the bytes that came from it.
#include <set>

#include "native/core/answer_gate.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;

namespace {

constexpr i64 kOpenBytes = 200, kSecond = 1'000'000'000;
constexpr u64 kBytes = 3'000;

StackConfig judged_elsewhere() {
  StackConfig config = weft::test::shipped_config();
  config.external_failure_detector = true;
  return config;
}

struct Strange : Pair {
  explicit Strange(i64 open_bytes = kOpenBytes, u16 paths = 8)
      : Pair(judged_elsewhere(), paths, 1472, 1 << 20, false, open_bytes) {
    CHECK(opened);
  }
  Peer& accepted() { return *stack[1].peer(peer[1]); }
  // What end 1 sends until `until_ns`; nothing arrives anywhere.
  std::vector<std::pair<i64, Wired>> alone(i64 until_ns) {
    std::vector<std::pair<i64, Wired>> sent;
    while (now_ns <= until_ns) {
      for (Wired& packet : take(1)) sent.emplace_back(now_ns, std::move(packet));
      const i64 next_ns = stack[1].poll_timeout();
      if (next_ns == kNever) break;
      now_ns = std::max(now_ns + 1, next_ns);
      stack[1].on_timer(now_ns);
    }
    now_ns = until_ns;
    return sent;
  }
};

i64 bytes_of(const std::vector<std::pair<i64, Wired>>& packets) {
  i64 bytes = 0;
  for (const auto& [at_ns, packet] : packets) bytes += static_cast<i64>(packet.header.size() + packet.payload.size());
  return bytes;
}

}  // namespace

TEST(answer_gate__admits_three_bytes_for_each_that_came_until_there_is_an_answer) {
  AnswerGate gate(10);
  CHECK(gate.is_closed());
  CHECK(!gate.admits(31));
  CHECK(gate.admits(20) && gate.admits(10) && !gate.admits(1));
  gate.on_arrived(1);
  CHECK(gate.admits(3) && !gate.admits(1));
  gate.on_answer();
  CHECK(!gate.is_closed() && gate.admits(1'000'000));
  CHECK(AnswerGate(-1).admits(1'000'000));
}

TEST(answer_gate__a_silent_stranger_gets_three_probes_at_doubling_intervals_over_three_paths) {
  Strange pair;
  const auto sent = pair.alone(100 * kSecond);
  CHECK_EQUAL(sent.size(), PathSet::kMeasuresMax);
  std::set<u8> paths;
  for (const auto& [at_ns, packet] : sent) {
    CHECK(packet.type() == weft::wire::Type::probe);
    paths.insert(packet.path);
  }
  CHECK_EQUAL(paths.size(), PathSet::kMeasuresMax);
  CHECK_EQUAL(sent[2].first - sent[1].first, 2 * (sent[1].first - sent[0].first));
}

TEST(answer_gate__whatever_the_owner_has_to_send_the_bytes_are_bounded) {
  for (const i64 open_bytes : {i64{0}, i64{30}, kOpenBytes, 20 * kOpenBytes}) {
    Strange pair(open_bytes);
    const std::vector<u8> data = weft::test::pattern(kBytes, 1);
    i64 bytes = 0;
    for (int i = 0; i < 5; ++i) {
      CHECK_EQUAL(pair.send(1, data.data(), kBytes), Status::ok);
      const auto sent = pair.alone(pair.now_ns + 10 * kSecond);
      bytes += bytes_of(sent);
      for (const auto& [at_ns, packet] : sent) CHECK(packet.type() == weft::wire::Type::probe);
    }
    CHECK(bytes <= 3 * open_bytes);
    CHECK(open_bytes < kOpenBytes || bytes >= 9 * 40);  // each post asks for an answer again
    pair.stack[1].close_flow(pair.now_ns, pair.flow[1], Status::connection_closed);
    CHECK(bytes + bytes_of(pair.alone(pair.now_ns + 100 * kSecond)) <= 3 * open_bytes);
  }
}

TEST(answer_gate__whatever_arrives_gives_room_and_asks_again) {
  Strange pair(40);  // as long as a probe: three of them use it up
  static_cast<void>(pair.alone(10 * kSecond));
  std::vector<Wired> packets = pair.take(0);  // the other end's probes
  CHECK(!packets.empty());
  pair.give(packets[0]);
  const auto sent = pair.alone(pair.now_ns + 10 * kSecond);
  CHECK(!sent.empty());
  CHECK_EQUAL(sent[0].second.path, packets[0].path);
  CHECK(bytes_of(sent) <= 3 * static_cast<i64>(packets[0].header.size()));
  CHECK(pair.accepted().paths().gate().is_closed());
}

TEST(answer_gate__the_first_answer_opens_it_and_all_paths_are_measured) {
  Strange pair;
  const std::vector<u8> data = weft::test::pattern(kBytes, 1);
  std::vector<u8> buffer(kBytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(0, buffer.data(), kBytes, &ticket), Status::ok);
  CHECK_EQUAL(pair.send(1, data.data(), kBytes), Status::ok);
  const i64 begun_ns = pair.now_ns;
  int done = 0;
  const auto over = [&] { return (done += pair.events(1, Event::Kind::send_done)) != 0; };
  CHECK(pair.run(over));
  CHECK(buffer == data);
  CHECK(pair.now_ns - begun_ns <= 100'000);  // a round trip of 40 us for the answer, and one for the message
  CHECK(!pair.accepted().paths().gate().is_closed());
  CHECK(!pair.run([] { return false; }, nullptr, kSecond));
  for (std::size_t path = 0; path < 8; ++path) CHECK(pair.accepted().paths().path(path).rtt.measured());
}

TEST(answer_gate__a_connection_opens_while_one_path_lives) {
  for (u8 alive = 0; alive < 4; ++alive) {
    Strange pair(kOpenBytes, 4);
    const std::vector<u8> data = weft::test::pattern(kBytes, 1);
    std::vector<u8> buffer(kBytes);
    ReceiveTicket ticket;
    CHECK_EQUAL(pair.receive(0, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(1, data.data(), kBytes), Status::ok);
    int done = 0;
    const auto over = [&] { return (done += pair.events(1, Event::Kind::send_done)) != 0; };
    CHECK(pair.run(over, [&](const Wired& packet) { return packet.path != alive; }, 20 * kSecond));
    CHECK(buffer == data);
  }
}

TEST(answer_gate__an_outage_of_all_paths_at_the_opening_is_survived) {
  Strange pair;
  const std::vector<u8> data = weft::test::pattern(kBytes, 1);
  std::vector<u8> buffer(kBytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(0, buffer.data(), kBytes, &ticket), Status::ok);
  CHECK_EQUAL(pair.send(1, data.data(), kBytes), Status::ok);
  int done = 0;
  const auto over = [&] { return (done += pair.events(1, Event::Kind::send_done)) != 0; };
  CHECK(!pair.run(over, [](const Wired&) { return true; }, 3 * kSecond));
  CHECK(pair.run(over, nullptr, 20 * kSecond));
  CHECK(buffer == data);
}

TEST(answer_gate__a_usable_path_without_an_answer_is_probed_three_times) {
  Strange pair(-1, 4);
  const auto deaf = [](const Wired& packet) { return packet.path == 2; };
  int probes = 0;
  const auto counts = [&](const Wired& packet) {
    probes += packet.path == 2 && packet.to == 0 && packet.type() == weft::wire::Type::probe ? 1 : 0;
    return deaf(packet);
  };
  CHECK(!pair.run([] { return false; }, counts, 100 * kSecond));
  CHECK_EQUAL(probes, static_cast<int>(PathSet::kMeasuresMax));
  CHECK(!pair.accepted().paths().path(2).rtt.measured());
  // A probe of the other end over the path makes this end measure it again.
  pair.accepted().paths().on_probed_by_peer(pair.now_ns, 2);
  CHECK(pair.accepted().paths().poll_timeout() <= pair.now_ns);
}
