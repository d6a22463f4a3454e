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

}  // namespace weft::engine
