// Paces a flow: decides when the next burst may be sent and how many bytes it may have. A rate of zero means no pacing.
#pragma once

#include <algorithm>

#include "native/core/types.h"

namespace weft::core {

class Pacer {
 public:
  // A burst may have as many bytes as the pacing rate sends in this time, so that it does not delay other flows on the
  // path.
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
    // After a pause at most one burst may be sent at once: a late timer may catch up, but a long pause gives no extra
    // bytes.
    const i64 from = std::max(next_ns_, now_ns - kBurstNs);
    const double gap_ns = static_cast<double>(bytes) * 1e9 / bytes_per_s_;
    next_ns_ = from + static_cast<i64>(std::min(gap_ns, 1e9));
  }

 private:
  double bytes_per_s_ = 0;
  i64 next_ns_ = 0;
};

}  // namespace weft::core
