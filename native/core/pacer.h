// Spaces bursts so that a flow keeps to its rate: when the next burst may leave, and how long it may be. A rate of zero
// means no pacing.
#pragma once

#include <algorithm>

#include "native/core/types.h"

namespace weft::core {

class Pacer {
 public:
  // Longest duration of a burst at the pacing rate, so that other flows on the path are not held up.
  static constexpr i64 kBurstNs = 50'000;

  void set_rate(double bytes_per_s) noexcept { bytes_per_s_ = bytes_per_s; }
  bool may_send(i64 now_ns) const noexcept { return bytes_per_s_ <= 0 || next_ns_ <= now_ns; }
  i64 next_ns() const noexcept { return next_ns_; }

  i64 burst_bytes_max() const noexcept {
    if (bytes_per_s_ <= 0) return std::numeric_limits<i64>::max();
    return static_cast<i64>(bytes_per_s_ * 1e-9 * static_cast<double>(kBurstNs));
  }

  void on_sent(i64 now_ns, i64 bytes) noexcept {
    if (bytes_per_s_ <= 0) return;
    // Idle time earns at most one burst of credit: a late timer may catch up, a long pause may not.
    const i64 from = std::max(next_ns_, now_ns - kBurstNs);
    const double gap_ns = static_cast<double>(bytes) * 1e9 / bytes_per_s_;
    next_ns_ = from + static_cast<i64>(std::min(gap_ns, 1e9));
  }

 private:
  double bytes_per_s_ = 0;
  i64 next_ns_ = 0;
};

}  // namespace weft::core
