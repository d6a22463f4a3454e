// A seeded random number generator (SplitMix64, Steele et al. 2014). The core has no other source of randomness, so a
// run is determined by its seed.
#pragma once

#include "native/core/types.h"

namespace weft::core {

class Random {
 public:
  explicit Random(u64 seed) noexcept : state_(seed) {}
  u64 next() noexcept {
    state_ += 0x9E3779B97F4A7C15u;
    u64 z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Returns a uniformly distributed number in [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  u64 state_;
};

}  // namespace weft::core
