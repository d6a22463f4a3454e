// Tests that a SmallMutex excludes threads from each other, and that a thread that waits for it sleeps.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "native/engine/small_mutex.h"
#include "tests/native/asleep.h"
#include "tests/native/check.h"

using weft::engine::SmallMutex;

TEST(small_mutex__excludes_threads_from_each_other) {
  SmallMutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5000; ++turn) {
        const std::lock_guard<SmallMutex> lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK_EQUAL(count, 20'000);
  CHECK_EQUAL(sizeof mutex, 4u);
}

TEST(small_mutex__a_thread_that_waits_sleeps_until_it_is_free) {
  SmallMutex mutex;
  std::atomic<std::int32_t> waiter{0};
  mutex.lock();
  std::thread waits([&] {
    waiter = weft::test::this_thread();
    const std::lock_guard<SmallMutex> lock(mutex);
  });
  while (waiter == 0) std::this_thread::yield();
  const bool slept = weft::test::falls_asleep(waiter);
  mutex.unlock();
  waits.join();
  CHECK(slept);
}
