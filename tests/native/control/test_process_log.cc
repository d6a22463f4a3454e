// Tests that log lines about peer processes contain address, cause and duration, and are limited in rate.
#include <string>
#include <vector>

#include "native/control/process_log.h"
#include "tests/native/check.h"

namespace {

using namespace weft::engine;
using namespace weft::control;
using weft::Status;
using weft::core::ProcessEvent;

constexpr std::int64_t kSecond = 1'000'000'000;

std::vector<std::string> written;
void keep(LogLevel, const char* text) noexcept { written.emplace_back(text); }

struct Bench {
  explicit Bench(LogLevel level = LogLevel::info) {
    written.clear();
    set_log_sink(&keep);
    set_log_level(level);
  }
  ~Bench() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::warn);
  }
  void tell(ProcessEvent::Kind kind, std::int64_t since_ns = 0, Status status = Status::ok, const char* cause = "") {
    ProcessEvent event;
    event.kind = kind;
    event.status = status;
    event.name = "10.0.0.2 port 4791";
    event.cause = cause;
    event.since_ns = since_ns;
    log.on_process(100 * kSecond, event);
  }
  std::vector<std::string> lines() {
    CHECK(flush_log(20 * kSecond));
    return written;
  }
  LogUse use;
  ProcessLog log{0};
};

bool holds(const std::string& line, const char* part) { return line.find(part) != std::string::npos; }

}  // namespace

TEST(process_log__a_peer_connects_and_leaves) {
  Bench bench;
  bench.tell(ProcessEvent::Kind::connected);
  bench.tell(ProcessEvent::Kind::reconnected, 98 * kSecond);
  bench.tell(ProcessEvent::Kind::disconnected, 0, Status::peer_dead, "its host closed the control socket");
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 3u);
  CHECK(holds(lines[0], "connected to 10.0.0.2 port 4791"));
  CHECK(holds(lines[1], "the control socket to 10.0.0.2 port 4791 was re-established after 2.0 s"));
  CHECK(holds(lines[2], "disconnected from 10.0.0.2 port 4791: its host closed the control socket"));
}

TEST(process_log__a_peer_that_was_expected_to_stay_is_a_warning) {
  Bench bench(LogLevel::warn);
  bench.tell(ProcessEvent::Kind::disconnected, 0, Status::ok, "goodbye");
  bench.tell(ProcessEvent::Kind::disconnected, 0, Status::peer_silent, "silent for 20 s");
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 1u);
  CHECK(holds(lines[0], "silent for 20 s"));
}

TEST(process_log__a_stalled_process_is_named_with_the_knob_that_bounds_the_wait) {
  Bench bench(LogLevel::warn);
  bench.tell(ProcessEvent::Kind::stalled, 70 * kSecond);
  bench.tell(ProcessEvent::Kind::resumed, 60 * kSecond);
  const std::vector<std::string> lines = bench.lines();
  CHECK_EQUAL(lines.size(), 2u);
  CHECK(holds(lines[0], "the peer process has not run for 30.0 s"));
  CHECK(holds(lines[0], "waiting for it, without a limit (WEFT_PEER_TIMEOUT=stall)"));
  CHECK(holds(lines[1], "the peer process runs again after 40.0 s"));
}

TEST(process_log__peers_that_come_and_go_fill_no_disk) {
  Bench bench;
  for (int i = 0; i < 1'000; ++i) bench.tell(ProcessEvent::Kind::disconnected, 0, Status::ok, "goodbye");
  CHECK_EQUAL(bench.lines().size(), 64u);
}
