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
  // Sets the rate also for the gap after the last burst, which may then end earlier or later. The gap is as long as
  // `bytes_max` bytes take at most: a burst of a larger window must not delay the single segments of a small one.
  void change_rate(double bytes_per_s, i64 bytes_max) noexcept {
    bytes_per_s_ = bytes_per_s;
    burst_bytes_ = std::min(burst_bytes_, bytes_max);
    next_ns_ = from_ns_ + (bytes_per_s_ <= 0 ? 0 : gap_ns());
  }
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
    from_ns_ = std::max(next_ns_, now_ns - kBurstNs);
    burst_bytes_ = bytes;
    next_ns_ = from_ns_ + gap_ns();
  }

 private:
  i64 gap_ns() const noexcept {
    return static_cast<i64>(std::min(static_cast<double>(burst_bytes_) * 1e9 / bytes_per_s_, 1e9));
  }

  double bytes_per_s_ = 0;
  i64 next_ns_ = 0;
  i64 from_ns_ = 0, burst_bytes_ = 0;  // when the gap after the last burst began, and the burst's size
};

}  // namespace weft::core
