// Samples the rate at which a flow's data was delivered (Cheng et al., draft-cheng-iccrg-delivery-rate-estimation-02,
// sections 3.2 and 3.3). The state of the flow at the time when a segment was sent is kept in checkpoints, made when
// acknowledgments arrive, instead of in each segment. Only flows whose window policy reads the samples have this.
#pragma once

#include <algorithm>
#include <array>

#include "native/core/types.h"

namespace weft::core {

struct DeliverySample {
  double bytes_per_s = 0;    // 0: none
  bool app_limited = false;  // when the segment was sent, the flow had too little to send
};

class DeliveryRate {
 public:
  // The first segment after a time in which nothing was in flight is about to be sent.
  void on_restart(i64 now_ns, i64 delivered_bytes) noexcept { keep({now_ns, now_ns, delivered_bytes, is_limited()}); }
  // The flow has nothing more to send, so what is in flight tells how much was sent, not how much can be.
  void on_idle(i64 delivered_bytes, i64 inflight_bytes) noexcept {
    limited_until_bytes_ = delivered_bytes + std::max<i64>(inflight_bytes, 1);
    if (count_ != 0) newest().limited = true;
  }
  // An acknowledgment whose newest segment was sent at `sent_ns`. `delivered_bytes`: of the flow, with this
  // acknowledgment. `srtt_ns`, `rtt_min_ns`: of the segment's path; a sample over less than rtt_min_ns would be of a
  // burst of acknowledgments.
  DeliverySample on_ack(i64 now_ns, i64 sent_ns, i64 delivered_bytes, i64 srtt_ns, i64 rtt_min_ns) noexcept {
    if (delivered_bytes >= limited_until_bytes_) limited_until_bytes_ = 0;
    DeliverySample sample;
    if (const Checkpoint* then = before(sent_ns)) {
      const i64 interval_ns = std::max(sent_ns - then->first_sent_ns, now_ns - then->at_ns);
      if (interval_ns >= std::max<i64>(rtt_min_ns, 1)) {
        sample.bytes_per_s =
            static_cast<double>(delivered_bytes - then->delivered_bytes) * 1e9 / static_cast<double>(interval_ns);
        sample.app_limited = then->limited;
      }
    }
    newest_sent_ns_ = std::max(newest_sent_ns_, sent_ns);
    if (count_ == 0 || now_ns - newest().at_ns >= srtt_ns / kPerRoundTrip) {
      keep({now_ns, newest_sent_ns_, delivered_bytes, is_limited()});
    } else if (newest().at_ns == now_ns) {  // the same acknowledgment, on another path
      newest().first_sent_ns = newest_sent_ns_;
    }
    return sample;
  }

 private:
  static constexpr std::size_t kCheckpoints = 64;  // of two round trips
  static constexpr i64 kPerRoundTrip = 32;

  struct Checkpoint {
    i64 at_ns = 0;          // when `delivered_bytes` were delivered
    i64 first_sent_ns = 0;  // when the newest segment of these was sent
    i64 delivered_bytes = 0;
    bool limited = false;
  };

  bool is_limited() const noexcept { return limited_until_bytes_ != 0; }
  Checkpoint& newest() noexcept { return ring_[(next_ + kCheckpoints - 1) % kCheckpoints]; }
  void keep(const Checkpoint& made) noexcept {
    ring_[next_] = made;
    next_ = (next_ + 1) % kCheckpoints;
    count_ = std::min(count_ + 1, kCheckpoints);
  }
  // The state when a segment was sent. Null: that was before the oldest checkpoint.
  const Checkpoint* before(i64 sent_ns) const noexcept {
    for (std::size_t back = 1; back <= count_; ++back) {
      const Checkpoint& one = ring_[(next_ + kCheckpoints - back) % kCheckpoints];
      if (one.at_ns <= sent_ns) return &one;
    }
    return nullptr;
  }

  std::array<Checkpoint, kCheckpoints> ring_;
  std::size_t next_ = 0, count_ = 0;
  i64 newest_sent_ns_ = 0;       // of the segments that arrived, on all paths
  i64 limited_until_bytes_ = 0;  // samples are limited until this much was delivered; 0: they are not
};

}  // namespace weft::core
