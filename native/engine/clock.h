// The one clock of the engines: monotonic nanoseconds.
// Nothing outside the engine room reads a clock; everything below it is told the time.
#pragma once

#include <cstdint>
#include <ctime>

namespace weft::engine {

inline std::int64_t now_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What CLOCK_REALTIME is ahead of that clock: the kernel stamps datagrams with the former.
inline std::int64_t realtime_ahead_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - now_ns();
}

// `from_ns` plus a patience of any length: too long a one ends never, not in the past.
inline std::int64_t later_ns(std::int64_t from_ns, std::int64_t patience_ns) noexcept {
  std::int64_t sum = 0;
  return __builtin_add_overflow(from_ns, patience_ns, &sum) ? INT64_MAX : sum;
}

}  // namespace weft::engine
