// A mutex of four bytes, for objects of which there are many. It never spins: a thread that must wait sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#include "native/engine/futex.h"

namespace weft::engine {

// The third algorithm of Drepper's "Futexes Are Tricky".
class SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void lock() noexcept {
    std::int32_t state = kFree;
    if (state_.compare_exchange_strong(state, kHeld, std::memory_order_acquire)) return;
    if (state != kAwaited) state = state_.exchange(kAwaited, std::memory_order_acquire);
    while (state != kFree) {
      futex_wait(&state_, kAwaited, kNapNs);
      state = state_.exchange(kAwaited, std::memory_order_acquire);
    }
  }
  void unlock() noexcept {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) futex_wake_all(&state_);
  }

 private:
  static constexpr std::int32_t kFree = 0, kHeld = 1, kAwaited = 2;
  static constexpr std::int64_t kNapNs = 1'000'000'000;
  std::atomic<std::int32_t> state_{kFree};
};

}  // namespace weft::engine
