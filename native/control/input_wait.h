// Waits for input of sockets: spins for a while, as waking a thread takes longer than a peer's answer on a short path,
// and then sleeps.
#pragma once

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "native/engine/clock.h"

namespace weft::control {

class InputWait {
 public:
  // `spin_ns`: the longest time to spin; 0: never.
  explicit InputWait(std::int64_t spin_ns) noexcept : spin_ns_(spin_ns) {}

  // Returns once a descriptor has input, or after about `pause_ms` milliseconds (-1: no limit). Spins until `spin_ns`
  // after `since_ns`, but not for longer than the pause, and calls between() in each turn. Several threads may wait at
  // once.
  template <class Between>
  void wait(pollfd* descriptors, nfds_t count, int pause_ms, std::int64_t since_ns, const Between& between) noexcept {
    const std::int64_t begun_ns = engine::now_ns();
    const std::int64_t end_ns = pause_ms < 0 ? INT64_MAX - kMsNs : begun_ns + pause_ms * kMsNs;
    if (spins(descriptors, count, begun_ns, std::min(engine::later_ns(since_ns, spin_ns_), end_ns), between)) return;
    // Rounded up: a caller that waits for a millisecond must not get zero.
    const std::int64_t left_ms = (std::max<std::int64_t>(end_ns - engine::now_ns(), 0) + kMsNs - 1) / kMsNs;
    static_cast<void>(::poll(descriptors, count, pause_ms < 0 ? -1 : static_cast<int>(left_ms)));
  }
  void wait(pollfd* descriptors, nfds_t count, int pause_ms, std::int64_t since_ns) noexcept {
    wait(descriptors, count, pause_ms, since_ns, [] {});
  }

 private:
  static constexpr std::int64_t kMsNs = 1'000'000;
  // If a yield takes this long, another thread needs the core. For kSharedCoreNs threads then sleep instead of
  // spinning: a thread that is woken gets a core sooner than one that has yielded.
  static constexpr std::int64_t kInterruptedNs = 500'000, kSharedCoreNs = 100'000'000;

  // True: a descriptor has input.
  template <class Between>
  bool spins(pollfd* descriptors, nfds_t count, std::int64_t now_ns, std::int64_t until_ns,
             const Between& between) noexcept {
    while (now_ns < until_ns && now_ns >= shared_until_ns_.load(std::memory_order_relaxed)) {
      if (::poll(descriptors, count, 0) > 0) return true;
      between();
      ::sched_yield();
      const std::int64_t after_ns = engine::now_ns();
      if (after_ns - now_ns > kInterruptedNs) {
        shared_until_ns_.store(after_ns + kSharedCoreNs, std::memory_order_relaxed);
      }
      now_ns = after_ns;
    }
    return false;
  }

  const std::int64_t spin_ns_;
  std::atomic<std::int64_t> shared_until_ns_{0};
};

}  // namespace weft::control
