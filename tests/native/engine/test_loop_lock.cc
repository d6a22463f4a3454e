// Tests whose thread runs an engine's loop, and how long a caller polls.
#include <thread>

#include "native/engine/loop_lock.h"
#include "native/engine/patience.h"
#include "tests/native/check.h"

using weft::engine::LoopLock;
using weft::engine::Patience;

namespace {

constexpr std::int64_t kMs = 1'000'000;

}  // namespace

TEST(loop_lock__one_thread_at_a_time_runs_the_loop) {
  LoopLock lock;
  CHECK(!lock.try_enter());  // the engine's thread has it from the start
  lock.leave();
  long counted = 0;
  const auto work = [&] {
    for (int i = 0; i < 20'000; ++i) {
      lock.enter();
      ++counted;
      lock.leave();
    }
  };
  std::thread other(work);
  work();
  other.join();
  CHECK_EQUAL(counted, 40'000);
}

TEST(loop_lock__a_caller_that_asks_attends_the_loop_for_a_while) {
  LoopLock lock;
  CHECK(!lock.attended(10 * kMs));
  CHECK(lock.ask(10 * kMs));
  CHECK(lock.attended(10 * kMs + LoopLock::kAttendedNs - 1));
  CHECK(!lock.attended(10 * kMs + LoopLock::kAttendedNs));
  CHECK(lock.ask(20 * kMs));
  lock.forsake();
  CHECK(!lock.attended(20 * kMs));
}

TEST(loop_lock__a_loop_that_moves_many_bytes_belongs_to_the_engines_thread) {
  LoopLock lock;
  CHECK(!lock.count(10 * kMs, LoopLock::kBulkBytes - 1));
  CHECK(!lock.count(10 * kMs + LoopLock::kWindowNs + 1, LoopLock::kBulkBytes - 1));  // another window
  CHECK(lock.ask(12 * kMs));
  CHECK(lock.count(10 * kMs + LoopLock::kWindowNs + 2, 1));
  CHECK(!lock.ask(12 * kMs));
  CHECK(!lock.attended(12 * kMs));  // so that the thread does not leave it to callers that may not come in
  CHECK(lock.ask(12 * kMs + LoopLock::kBulkNs));
}

TEST(loop_lock__bytes_that_callers_wait_for_do_not_count) {
  LoopLock lock;
  constexpr std::uint64_t kMessage = 65'536;
  for (int i = 0; i < 100; ++i) {
    CHECK(!lock.count(10 * kMs + i, kMessage));
    CHECK(!lock.count(10 * kMs + i, kMessage));  // its answer
    lock.discount(2 * kMessage);
  }
  CHECK(!lock.count(10 * kMs + 100, LoopLock::kBulkBytes - 2 * kMessage));  // another caller's
  lock.discount(0);
  CHECK(!lock.count(10 * kMs + 101, kMessage));
  CHECK(lock.count(10 * kMs + 102, kMessage));
}

TEST(loop_lock__no_more_is_taken_off_than_was_counted) {
  LoopLock lock;
  CHECK(!lock.count(10 * kMs, 1));
  lock.discount(LoopLock::kBulkBytes);
  CHECK(!lock.count(10 * kMs + 1, LoopLock::kBulkBytes - 1));
  CHECK(lock.count(10 * kMs + 2, 1));
}

TEST(loop_lock__a_loop_that_is_kept_belongs_to_the_engines_thread_for_a_while) {
  LoopLock lock;
  CHECK(!lock.keep(10 * kMs));  // no caller runs it
  CHECK(!lock.ask(10 * kMs + LoopLock::kBulkNs - 1));
  CHECK(lock.ask(10 * kMs + LoopLock::kBulkNs));
  CHECK(lock.keep(10 * kMs + LoopLock::kBulkNs));  // the engine's thread has to be woken
  CHECK(!lock.attended(10 * kMs + LoopLock::kBulkNs));
  CHECK(!lock.keep(10 * kMs + LoopLock::kBulkNs + 1));
  CHECK(!lock.keep(10 * kMs + 2 * LoopLock::kBulkNs - 1));  // for as long again
  CHECK(!lock.ask(10 * kMs + 2 * LoopLock::kBulkNs));
}

TEST(patience__polling_in_vain_keeps_to_its_share) {
  constexpr std::int64_t kLongest = 200'000;
  Patience patience(kLongest, 0.05);
  std::int64_t now_ns = 1'000 * kMs, vain_ns = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::int64_t polled_ns = patience.begin(now_ns, 8);
    if (polled_ns != 0) patience.on_vain(polled_ns);
    vain_ns += polled_ns;
    now_ns += 300'000;
  }
  const double share = static_cast<double>(vain_ns) / (10'000.0 * 300'000);
  CHECK(share > 0.04);
  CHECK(share < 0.06);
}

TEST(patience__waits_with_long_buffers_are_polled_for_longer_within_the_same_share) {
  constexpr std::int64_t kFree = 200'000, kStepNs = 7'300'000;
  constexpr int kWaits = 4'000;
  const std::uint64_t sizes[] = {8, 32 * 1024 - 1, 32 * 1024, 65'536, 512 * 1024, 512 * 1024 + 1};
  const std::int64_t limits_ns[] = {kFree, kFree, 2 * kFree, 3 * kFree, 4 * kFree, kFree};
  for (int at = 0; at < 6; ++at) {
    Patience patience(kFree, 0.01);
    std::int64_t now_ns = 1'000 * kMs, vain_ns = 0;
    for (int i = 0; i < kWaits; ++i) {
      const std::int64_t limit_ns = patience.begin(now_ns, sizes[at]);
      if (limit_ns != 0) {
        CHECK_EQUAL(limit_ns, limits_ns[at]);
        patience.on_vain(limit_ns);
      }
      vain_ns += limit_ns;
      now_ns += kStepNs;
    }
    const double share = static_cast<double>(vain_ns) / (static_cast<double>(kWaits) * kStepNs);
    CHECK(share > 0.008);
    CHECK(share < 0.012);
  }
}

// Short messages that come into long buffers, or seldom: what is polled for longer than a short wait has its price.
TEST(patience__polls_that_find_their_message_late_keep_to_the_share) {
  constexpr std::int64_t kFree = 200'000, kPeriodNs = 700'000;
  Patience patience(kFree, 0.05);
  std::int64_t now_ns = 1'000 * kMs, beyond_ns = 0;
  int polled = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (patience.begin(now_ns, 512 * 1024) != 0) {
      patience.on_found(kPeriodNs);
      beyond_ns += kPeriodNs - kFree;
      ++polled;
    }
    now_ns += kPeriodNs;
  }
  CHECK(polled > 100);
  CHECK(static_cast<double>(beyond_ns) / (10'000.0 * kPeriodNs) < 0.06);
}

TEST(patience__polls_that_find_their_message_soon_are_free) {
  Patience patience(200'000, 0.05);
  for (int i = 0; i < 1'000; ++i) {
    CHECK_EQUAL(patience.begin(1'000 * kMs + i, 8), 200'000);
    patience.on_found(200'000);
  }
  for (int i = 0; i < 1'000; ++i) {
    CHECK_EQUAL(patience.begin(1'000 * kMs + i, 65'536), 600'000);
    patience.on_found(150'000);
  }
}

TEST(patience__no_share_means_no_polling) {
  Patience patience(200'000, 0.0);
  CHECK_EQUAL(patience.begin(1'000 * kMs, 8), 0);
  CHECK_EQUAL(patience.begin(9'000 * kMs, 8), 0);
  Patience never(0, 1.0);
  CHECK_EQUAL(never.begin(1'000 * kMs, 512 * 1024), 0);
}
