// Tests that log lines about paths and peers contain address, path and cause, and are limited in rate.
#include <string>
#include <vector>

#include "native/engine/event_log.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

namespace {

using namespace weft::engine;
namespace core = weft::core;
using weft::test::Pair;

constexpr std::int64_t kMs = 1'000'000;

std::vector<std::string> written;
void keep(LogLevel, const char* text) noexcept { written.emplace_back(text); }

struct Bench {
  Bench() : pair(core::StackConfig{}, 4, 1472, 1 << 20, true), log(&pair.stack[0]) {
    written.clear();
    set_log_sink(&keep);
    set_log_level(LogLevel::info);
    log.name_peer(pair.peer[0], {"10.0.0.2", "10.0.1.2"});
  }
  ~Bench() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::warn);
  }
  void tell(std::int64_t at_ns, core::Event::Kind kind, int path, std::uint64_t value = 0) {
    core::Event event{};
    event.kind = kind;
    event.peer = pair.peer[0];
    event.path = static_cast<std::uint8_t>(path);
    event.value = value;
    log.on_event(at_ns, event);
  }
  // The path goes down and comes back, `count` times from 20 s on, which makes two lines each time.
  void flap(int path, int count) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t at_ns = (20'000 + 20 * i) * kMs;
      tell(at_ns, core::Event::Kind::path_down, path);
      log.on_received(at_ns + 10 * kMs);
      tell(at_ns + 11 * kMs, core::Event::Kind::path_up, path);
      log.on_received(at_ns + 11 * kMs);
    }
  }
  std::vector<std::string> lines() {
    CHECK(flush_log(20'000'000'000));
    return written;
  }

  LogUse use;
  Pair pair;
  EventLog log;
};

}  // namespace

TEST(event_log__a_path_goes_down_and_comes_back) {
  Bench bench;
  bench.tell(5'000 * kMs, core::Event::Kind::path_down, 3);
  bench.log.on_received(5'009 * kMs);
  CHECK(bench.lines().empty());
  bench.log.on_received(5'010 * kMs);
  CHECK_EQUAL(bench.log.due_ns(), INT64_MAX);
  bench.tell(6'250 * kMs, core::Event::Kind::path_up, 3);
  CHECK_EQUAL(bench.log.due_ns(), 6'250 * kMs);
  bench.log.on_received(6'250 * kMs);
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 2u);
  CHECK(lines[0].find("path 3 to 10.0.1.2 is down: no reply arrives on it; probing it; 4 of 4") != std::string::npos);
  CHECK(lines[1].find("path 3 to 10.0.1.2 is up again after 1.25 s; 4 of 4") != std::string::npos);
}

// A path that is silent for milliseconds must not be logged as down, because a busy processor can delay replies by that
// much.
TEST(event_log__a_short_silence_gets_no_line) {
  Bench bench;
  bench.tell(5'000 * kMs, core::Event::Kind::path_down, 3);
  bench.tell(5'002 * kMs, core::Event::Kind::path_up, 3);
  bench.log.on_received(6'000 * kMs);
  CHECK(bench.lines().empty());
}

TEST(event_log__long_datagrams_that_vanish_are_the_cause) {
  Bench bench;
  bench.tell(kMs, core::Event::Kind::path_down, 0, 1);
  bench.log.on_received(20 * kMs);
  CHECK(bench.lines().at(0).find("datagrams of 1472 bytes do not get through on it") != std::string::npos);
}

// Paths that change together get one line for each address.
TEST(event_log__paths_that_change_together_share_a_line) {
  Bench bench;
  for (const int path : {0, 1, 2, 3}) bench.tell(kMs, core::Event::Kind::path_down, path);
  bench.log.on_received(20 * kMs);
  for (const int path : {0, 2}) bench.tell((20 + path) * kMs, core::Event::Kind::path_up, path);
  bench.log.on_received(1'000 * kMs);
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 3u);
  CHECK(lines[0].find("paths 0, 2 to 10.0.0.2 are down: no reply arrives on them; probing them") != std::string::npos);
  CHECK(lines[1].find("paths 1, 3 to 10.0.1.2 are down") != std::string::npos);
  CHECK(lines[2].find("paths 0, 2 to 10.0.0.2 are up again after at most 0.021 s; 4 of 4") != std::string::npos);
}

TEST(event_log__neighbouring_paths_are_given_as_a_range) {
  Bench bench;
  bench.log.name_peer(bench.pair.peer[0], {"10.0.0.2"});
  for (const int path : {0, 1, 2, 3}) bench.tell(kMs, core::Event::Kind::path_down, path);
  bench.log.on_received(20 * kMs);
  for (const int path : {0, 1}) bench.tell(30 * kMs, core::Event::Kind::path_up, path);
  bench.log.on_received(40 * kMs);
  CHECK(bench.lines().at(0).find("paths 0-3 to 10.0.0.2 are down") != std::string::npos);
  CHECK(bench.lines().at(1).find("paths 0, 1 to 10.0.0.2 are up again") != std::string::npos);
}

// However often paths change, the number of lines is limited, and the last line about a path says what is so.
TEST(event_log__paths_that_flap_fill_no_disk) {
  Bench bench;
  bench.flap(1, 100);
  CHECK_EQUAL(bench.lines().size(), 32u);
  bench.tell(22'000 * kMs, core::Event::Kind::path_down, 2);
  bench.tell(22'000 * kMs, core::Event::Kind::path_down, 1);
  bench.log.on_received(22'010 * kMs);
  CHECK_EQUAL(bench.lines().size(), 32u);
  CHECK_EQUAL(bench.log.due_ns(), 30'010 * kMs);
  bench.log.on_received(30'010 * kMs);
  CHECK_EQUAL(bench.lines().size(), 34u);
  CHECK(bench.lines()[32].find("path 2 to 10.0.0.2 is down") != std::string::npos);
  CHECK(bench.lines()[33].find("path 1 to 10.0.1.2 is down") != std::string::npos);
}

// The log calls path 1 down. While no line is allowed it comes back, fails for another cause, and comes back again.
TEST(event_log__a_path_that_failed_twice_is_corrected) {
  Bench bench;
  bench.flap(0, 15);  // 30 lines
  bench.tell(20'400 * kMs, core::Event::Kind::path_down, 1);
  bench.tell(20'400 * kMs, core::Event::Kind::path_down, 2);
  bench.log.on_received(20'410 * kMs);
  CHECK_EQUAL(bench.lines().size(), 32u);
  bench.tell(20'420 * kMs, core::Event::Kind::path_up, 1);
  bench.tell(20'430 * kMs, core::Event::Kind::path_down, 1, 1);
  bench.log.on_received(20'450 * kMs);
  bench.tell(20'460 * kMs, core::Event::Kind::path_up, 1);
  bench.log.on_received(31'000 * kMs);
  CHECK_EQUAL(bench.lines().size(), 33u);
  CHECK(bench.lines()[32].find("path 1 to 10.0.1.2 is up again") != std::string::npos);
  bench.tell(31'100 * kMs, core::Event::Kind::path_down, 1, 1);
  bench.log.on_received(31'110 * kMs);
  CHECK(bench.lines().back().find("datagrams of 1472 bytes do not get through") != std::string::npos);
}

// Paths that flap do not use up the lines of others.
TEST(event_log__each_change_gets_its_turn) {
  Bench bench;
  bench.flap(0, 16);  // 32 lines
  bench.tell(21'000 * kMs, core::Event::Kind::path_down, 0);
  bench.tell(21'000 * kMs, core::Event::Kind::path_down, 1);
  bench.log.on_received(31'000 * kMs);
  CHECK(bench.lines().at(32).find("path 1 to 10.0.1.2 is down") != std::string::npos);
  CHECK(bench.lines().at(33).find("path 0 to 10.0.0.2 is down") != std::string::npos);
}

TEST(event_log__nothing_is_kept_where_nothing_is_logged) {
  Bench bench;
  set_log_level(LogLevel::warn);
  bench.tell(5'000 * kMs, core::Event::Kind::path_down, 3);
  CHECK_EQUAL(bench.log.due_ns(), INT64_MAX);
}

// Refused packets are logged once per interval, however many there are.
TEST(event_log__packets_that_are_refused_now_are_named) {
  Bench bench;
  const std::uint8_t header[48] = {};  // lacks the magic number
  const weft::wire::RxDatagram datagram{header, 48, nullptr, 0, false};
  bench.pair.stack[0].on_datagram(kMs, datagram);
  bench.log.on_received(kMs);
  CHECK(bench.lines().back().find("counter bad_magic") != std::string::npos);
  bench.log.on_received(2 * kMs);
  CHECK_EQUAL(bench.lines().size(), 1u);
  bench.pair.stack[0].on_datagram(3 * kMs, datagram);
  bench.log.on_received(3 * kMs);
  CHECK_EQUAL(bench.lines().size(), 1u);  // no second line within the interval
  bench.log.on_received(20'000 * kMs);
  CHECK_EQUAL(bench.lines().size(), 2u);
  CHECK(bench.lines().back().find("counter bad_magic") != std::string::npos);
}

TEST(event_log__a_peer_that_is_released_takes_its_name_along) {
  Bench bench;
  bench.tell(kMs, core::Event::Kind::peer_released, 0);
  bench.tell(2 * kMs, core::Event::Kind::path_down, 0);
  bench.log.on_received(20 * kMs);
  CHECK(bench.lines().at(0).find("path 0 to peer ") != std::string::npos);
}

TEST(event_log__losses_are_told_at_level_debug_alone) {
  Bench bench;
  bench.tell(kMs, core::Event::Kind::loss, 1, 12);
  CHECK(bench.lines().empty());
  set_log_level(LogLevel::debug);
  bench.tell(kMs, core::Event::Kind::loss, 1, 12);
  bench.tell(kMs, core::Event::Kind::timeout, 1, 3);
  bench.tell(kMs, core::Event::Kind::path_probed, 1);
  bench.tell(kMs, core::Event::Kind::peer_connected, 0, 4);
  bench.tell(kMs, core::Event::Kind::policy_replaced, 0, static_cast<std::uint64_t>(weft::policy::Family::window));
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 5u);
  CHECK(lines[0].find("path 1 to 10.0.1.2: flow ") != std::string::npos);
  CHECK(lines[0].find(" lost 12 segments") != std::string::npos);
  CHECK(lines[2].find("probing path 1 to 10.0.1.2") != std::string::npos);
  CHECK(lines[3].find("connected to peer 10.0.0.2 over 4 paths") != std::string::npos);
  CHECK(lines[4].find("replaced the window policy of ") != std::string::npos);
}

// The log gets the stack's events by itself, without help from the engine.
TEST(event_log__is_subscribed_to_its_stack) {
  Bench bench;
  core::Event event{};
  event.kind = core::Event::Kind::path_down;
  event.peer = bench.pair.peer[0];
  bench.pair.stack[0].trace().now_ns = kMs;
  bench.pair.stack[0].trace().emit(event);
  bench.log.on_received(20 * kMs);
  CHECK(bench.lines().at(0).find("path 0 to 10.0.0.2 is down") != std::string::npos);
}
