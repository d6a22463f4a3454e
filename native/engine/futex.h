// Futex wait with a timeout (which std::atomic::wait lacks) and futex wake.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace weft::engine {

inline void futex_wait(std::atomic<std::int32_t>* word, std::int32_t expected, std::int64_t timeout_ns) noexcept {
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

// For a word in memory that processes share.
inline void shared_futex_wait(std::atomic<std::int32_t>* word, std::int32_t expected,
                              std::int64_t timeout_ns) noexcept {
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}
inline void shared_futex_wake_all(std::atomic<std::int32_t>* word) noexcept {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::int32_t>* word) noexcept {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weft::engine
