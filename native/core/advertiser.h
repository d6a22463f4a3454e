// Schedules the advertisements of posted receives to the sender, and repeats each advertisement until it is confirmed.
// ReceiveQueue holds the receives.
#pragma once

#include <algorithm>

#include "native/core/types.h"

namespace weft::core {

class Advertiser {
 public:
  static constexpr u64 kSaidAgainMax = 16;
  // `urgent`: the sender may be waiting for this advertisement. One that is not urgent only lets the sender send more
  // eager messages; it is sent after a delay, or at once if the unconfirmed receives number at least half of the eager
  // slots.
  void on_post(i64 now_ns, u64 posted, bool urgent, u64 eager_slots) noexcept {
    posted_ = posted;
    if (urgent || 2 * (posted - confirmed_) >= eager_slots) {
      due_ = posted_ > sent_;
    } else if (resend_ns_ == kNever) {
      resend_ns_ = now_ns + kLazyNs;
    }
  }
  void on_confirm(u64 confirmed) noexcept {
    if (confirmed <= confirmed_ || confirmed > posted_) return;
    confirmed_ = confirmed;
    backoff_ = 0;
    if (confirmed_ >= posted_) resend_ns_ = kNever;
  }
  // Receives of messages before `message` need not be advertised: other flows carried those messages.
  void pass(u64 message) noexcept {
    confirmed_ = std::max(confirmed_, std::min(message, posted_));
    sent_ = std::max(sent_, confirmed_);
  }
  void on_timer(i64 now_ns) noexcept {
    if (now_ns < resend_ns_) return;
    resend_ns_ = kNever;
    if (sent_ > confirmed_ && backoff_ < 10) ++backoff_;
    sent_ = confirmed_;
    due_ = sent_ < posted_;
  }

  bool due() const noexcept { return due_; }
  // True while an advertisement was sent and is not confirmed.
  bool unanswered() const noexcept { return confirmed_ < posted_ && (sent_ > confirmed_ || backoff_ != 0); }
  u64 confirmed() const noexcept { return confirmed_; }
  // Number of consecutive advertisements that were not confirmed in time.
  u32 retries() const noexcept { return backoff_; }
  // First receive of the next advertisement. Up to kSaidAgainMax unconfirmed entries are sent again, because the sender
  // ignores an advertisement that arrives before its predecessor.
  u64 first() const noexcept { return sent_ - confirmed_ <= kSaidAgainMax ? confirmed_ : sent_; }
  // Notes that the entries [first(), first() + count) were put into a packet.
  void on_sent(u64 count, i64 now_ns, i64 rto_ns, i64 interval_ns_max = kNever) noexcept {
    const u64 end = first() + count;
    sent_ = end > sent_ ? end : sent_;
    due_ = sent_ < posted_;
    resend_ns_ = now_ns + std::min(rto_ns << backoff_, interval_ns_max);
  }
  i64 poll_timeout() const noexcept { return resend_ns_; }

 private:
  static constexpr i64 kLazyNs = 10'000'000;

  u64 posted_ = 0;
  u64 sent_ = 0;
  u64 confirmed_ = 0;
  i64 resend_ns_ = kNever;
  u32 backoff_ = 0;
  bool due_ = false;
};

}  // namespace weft::core
