// The clock of the engines: monotonic time in nanoseconds. The core does not read it; it gets the time as a parameter.
#pragma once

#include <cstdint>
#include <ctime>

namespace weft::engine {

inline std::int64_t now_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// CLOCK_REALTIME minus the monotonic clock. The kernel's time stamps of datagrams use CLOCK_REALTIME.
inline std::int64_t realtime_ahead_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - now_ns();
}

// To be called in each turn of a loop that waits without sleeping.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns `from_ns` plus `patience_ns`, or INT64_MAX if the sum would overflow.
inline std::int64_t later_ns(std::int64_t from_ns, std::int64_t patience_ns) noexcept {
  std::int64_t sum = 0;
  return __builtin_add_overflow(from_ns, patience_ns, &sum) ? INT64_MAX : sum;
}

}  // namespace weft::engine
