// Smooths round-trip times and derives the retransmission timeout (RFC 6298, section 2), with exponential backoff.
// Reads no clock: samples are given.
#pragma once

#include <algorithm>

#include "native/core/types.h"

namespace weft::core {

class RttEstimator {
 public:
  void on_sample(i64 rtt_ns) noexcept {
    // An hour is no round trip, whatever a packet claims; the bound keeps the sums below from overflowing.
    rtt_ns = std::clamp<i64>(rtt_ns, 1, 3'600'000'000'000);
    if (srtt_ns_ == 0) {
      srtt_ns_ = rtt_ns;
      rttvar_ns_ = rtt_ns / 2;
      min_ns_ = rtt_ns;
    } else {
      const i64 error = rtt_ns - srtt_ns_;
      rttvar_ns_ += ((error < 0 ? -error : error) - rttvar_ns_) / 4;
      srtt_ns_ += error / 8;
      min_ns_ = std::min(min_ns_, rtt_ns);
    }
  }

  bool measured() const noexcept { return srtt_ns_ != 0; }
  i64 smoothed_ns() const noexcept { return srtt_ns_; }
  i64 variation_ns() const noexcept { return rttvar_ns_; }
  i64 min_ns() const noexcept { return min_ns_; }

  // Before the first sample: 20 times the floor, which is 20 ms with the default knobs.
  i64 timeout_ns(i64 floor_ns, i64 ceiling_ns, u32 backoff) const noexcept {
    const i64 base = measured() ? std::max(floor_ns, srtt_ns_ + 4 * rttvar_ns_) : 20 * floor_ns;
    const u32 shift = std::min(backoff, 20u);
    return base > ceiling_ns >> shift ? ceiling_ns : base << shift;
  }

 private:
  i64 srtt_ns_ = 0;
  i64 rttvar_ns_ = 0;
  i64 min_ns_ = 0;
};

}  // namespace weft::core
