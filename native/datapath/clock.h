// Reads the monotonic clock, for bounded waits and to measure how long a path was broken.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft::datapath {

inline std::int64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace weft::datapath
