// Tests the verdicts on a peer process, tick by tick: dead, stalled, unreachable or well. Uses no clock and no socket.
#include "native/control/peer_health.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using control::Condition;
using control::HealthFacts;
using control::HealthLimits;
using control::PeerHealth;

constexpr std::int64_t kMs = 1'000'000, kSecond = 1'000 * kMs;

// Examines a peer until there is a verdict or the limit is reached; `facts_at` gives the facts known at each tick.
struct Examination {
  HealthLimits limits;
  std::int64_t ended_ns = -1;
  Status verdict = Status::ok;
  Condition condition = Condition::well;

  template <typename Facts>
  Examination& run(std::int64_t limit_ns, const Facts& facts_at, std::int64_t tick_ns = 250 * kMs) {
    PeerHealth health(limits);
    health.begin(0);
    for (std::int64_t now_ns = tick_ns; now_ns <= limit_ns && verdict == Status::ok; now_ns += tick_ns) {
      verdict = health.on_tick(now_ns, facts_at(now_ns));
      condition = health.condition();
      ended_ns = now_ns;
    }
    return *this;
  }
};

}  // namespace

TEST(health__a_process_that_answers_and_sends_is_well) {
  const auto seen = Examination{}.run(600 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.data_ns = facts.pong_ns = facts.kernel_ns = now_ns - kMs;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::ok);
  CHECK(seen.condition == Condition::well);
}

TEST(health__a_stopped_process_is_waited_for_as_long_as_its_kernel_answers) {
  const auto kernel_alone = [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.kernel_ns = now_ns - kSecond;
    facts.data_quiet = true;
    return facts;
  };
  auto seen = Examination{}.run(3600 * kSecond, kernel_alone);
  CHECK_EQUAL(seen.verdict, Status::ok);
  CHECK(seen.condition == Condition::stalled);
  Examination bounded;
  bounded.limits.stall_ns = 30 * kSecond;
  bounded.run(3600 * kSecond, kernel_alone);
  CHECK_EQUAL(bounded.verdict, Status::peer_stalled);
  CHECK(bounded.ended_ns >= 30 * kSecond && bounded.ended_ns <= 31 * kSecond);
}

TEST(health__an_engine_that_takes_no_turns_is_a_stall_and_no_silence) {
  const auto seen = Examination{}.run(3600 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.pong_ns = facts.kernel_ns = now_ns - kMs;
    facts.engines_turn = false;
    facts.data_quiet = true;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::ok);
  CHECK(seen.condition == Condition::stalled);
}

TEST(health__dead_paths_between_running_processes_are_silence) {
  Examination seen;
  seen.run(100 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.pong_ns = facts.kernel_ns = now_ns - kMs;
    facts.data_quiet = true;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::peer_silent);
  // An examination of a peer begins after 5/16 of the allowed silence of 20 s; the other 11/16 are 13.75 s.
  CHECK(seen.ended_ns >= 13 * kSecond && seen.ended_ns <= 15 * kSecond);
}

TEST(health__one_engines_paths_are_silence_though_another_is_heard) {
  const auto seen = Examination{}.run(100 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.data_ns = facts.pong_ns = facts.kernel_ns = now_ns - kMs;
    facts.data_quiet = true;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::peer_silent);
}

TEST(health__a_host_that_is_gone_is_dead_after_its_time) {
  Examination seen;
  seen.run(100 * kSecond, [](std::int64_t) { return HealthFacts{}; });
  CHECK_EQUAL(seen.verdict, Status::peer_dead);
  CHECK(seen.ended_ns >= 20 * kSecond && seen.ended_ns <= 21 * kSecond);
}

TEST(health__data_is_life_whatever_became_of_the_control_socket) {
  const auto seen = Examination{}.run(600 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.data_ns = now_ns - kMs;
    facts.ended = facts.refused = true;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::ok);
}

TEST(health__a_closed_and_refused_process_is_dead_at_once) {
  const auto gone = [](std::int64_t) {
    HealthFacts facts;
    facts.ended = facts.refused = true;
    return facts;
  };
  Examination seen;
  seen.run(10 * kSecond, gone, 50 * kMs);
  CHECK_EQUAL(seen.verdict, Status::peer_dead);
  CHECK(seen.ended_ns <= 500 * kMs);
}

TEST(health__a_closed_socket_whose_host_takes_another_is_a_stall) {
  const auto seen = Examination{}.run(100 * kSecond, [](std::int64_t now_ns) {
    HealthFacts facts;
    facts.ended = true;
    facts.kernel_ns = now_ns - kSecond;
    return facts;
  });
  CHECK_EQUAL(seen.verdict, Status::ok);
  CHECK(seen.condition == Condition::stalled);
}

// This process is stopped for a minute during an examination: that time does not count as silence of the peer.
TEST(health__a_pause_of_ours_is_not_charged_to_the_peer) {
  PeerHealth health(HealthLimits{});
  health.begin(0);
  CHECK_EQUAL(health.on_tick(250 * kMs, HealthFacts{}), Status::ok);
  std::int64_t now_ns = 60 * kSecond;
  CHECK_EQUAL(health.on_tick(now_ns, HealthFacts{}), Status::ok);
  for (int i = 0; i < 40; ++i) CHECK_EQUAL(health.on_tick(now_ns += 250 * kMs, HealthFacts{}), Status::ok);
  HealthFacts alive;
  alive.data_ns = now_ns + 200 * kMs;
  CHECK_EQUAL(health.on_tick(now_ns + 250 * kMs, alive), Status::ok);
  CHECK(health.condition() == Condition::well);
}
