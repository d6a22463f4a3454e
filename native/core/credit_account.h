// The sender's credit: how many bytes the receiver has granted, how many of them were used, and when to request more.
#pragma once

#include <algorithm>
#include <limits>

#include "native/core/types.h"

namespace weft::core {

class CreditAccount {
 public:
  // `speculative_bytes`: bytes that may be sent before the first grant; kNoCredit: unlimited until a grant arrives.
  explicit CreditAccount(u64 speculative_bytes) noexcept : in_force_(speculative_bytes != kNoCredit) {
    if (in_force_) granted_bytes_ = speculative_bytes;
  }

  bool in_force() const noexcept { return in_force_; }
  bool is_spent() const noexcept { return in_force_ && spent_bytes_ >= granted_bytes_; }
  // Limit of the next burst, in bytes. When all credit is used, only an empty segment can be sent; it needs no credit,
  // so there is no limit then.
  i64 burst_bytes_max() const noexcept {
    if (!in_force_ || is_spent()) return std::numeric_limits<i64>::max();
    return static_cast<i64>(std::min(granted_bytes_ - spent_bytes_, u64{1} << 40));
  }
  void on_sent(u64 bytes) noexcept { spent_bytes_ += bytes; }
  // `granted_bytes`: all bytes granted so far; kNoCredit: the packet carries no grant. Returns true if the grant has
  // grown.
  bool on_granted(u64 granted_bytes) noexcept {
    if (granted_bytes == kNoCredit) return false;
    in_force_ = true;
    if (granted_bytes <= granted_bytes_) return false;
    granted_bytes_ = granted_bytes;
    requests_ = 0;
    return true;
  }
  // Whether to request credit now: `wanted_bytes` has changed, or a sender without credit has waited long enough for an
  // answer. The wait doubles with each unanswered request.
  bool take_request(i64 now_ns, u64 wanted_bytes, bool starved, const StackConfig& config) noexcept {
    const bool news = wanted_bytes != wanted_bytes_;
    if (!news && !(starved && now_ns >= request_ns_)) return false;
    if (news) requests_ = 0;
    wanted_bytes_ = wanted_bytes;
    // Requests are repeated at growing intervals: a receiver with many senders may rightly grant nothing for long, but
    // its grant may also have been lost.
    const i64 most_ns = std::max<i64>(config.rto_ns_max >> requests_, 1);
    request_ns_ = now_ns + std::min(config.rto_ns_min, most_ns) * (2 << requests_);
    if (requests_ < kDoublings) ++requests_;
    return true;
  }
  // When a sender without credit repeats its request.
  i64 request_ns() const noexcept { return request_ns_; }
  void end() noexcept {
    in_force_ = false;
    request_ns_ = kNever;
  }

 private:
  static constexpr u8 kDoublings = 4;

  u64 granted_bytes_ = 0;
  u64 spent_bytes_ = 0;  // bytes sent, retransmissions included
  u64 wanted_bytes_ = 0;
  i64 request_ns_ = kNever;
  u8 requests_ = 0;  // number of requests since the last grant
  bool in_force_;
};

}  // namespace weft::core
