// Smooths RTT samples and derives the retransmission timeout (RFC 6298, section 2), with exponential backoff.
#pragma once

#include <algorithm>

#include "native/core/types.h"

namespace weft::core {

class RttEstimator {
 public:
  // `rtt_ns`: round-trip time of the network. `host_ns`: delay that the two hosts added; it counts for the timeout, but
  // not for the minimum RTT.
  void on_sample(i64 rtt_ns, i64 host_ns = 0) noexcept {
    // At most one hour, whatever a packet claims. The limit also prevents overflows in the sums below.
    constexpr i64 kMost = 3'600'000'000'000;
    rtt_ns = std::clamp<i64>(rtt_ns, 1, kMost);
    host_ns = std::clamp<i64>(host_ns, 0, kMost);
    const i64 whole_ns = rtt_ns + host_ns;
    if (!measured()) {
      srtt_ns_ = whole_ns;
      rttvar_ns_ = bounded(whole_ns / 2);
      host_ns_ = bounded(host_ns);
      min_ns_ = rtt_ns;
    } else {
      const i64 error = whole_ns - srtt_ns_;
      rttvar_ns_ = bounded(rttvar_ns_ + ((error < 0 ? -error : error) - rttvar_ns_) / 4);
      host_ns_ = bounded(host_ns_ + (host_ns - host_ns_) / 8);
      srtt_ns_ += error / 8;
      min_ns_ = std::min(min_ns_, rtt_ns);
    }
  }

  // Sets an estimated RTT, such as that of the control socket to the same host. It is used until the first sample.
  void expect(i64 rtt_ns) noexcept {
    if (measured()) return;
    srtt_ns_ = std::clamp<i64>(rtt_ns, 1, 3'600'000'000'000);
    rttvar_ns_ = bounded(srtt_ns_ / 2);
  }

  bool measured() const noexcept { return min_ns_ != 0; }
  i64 smoothed_ns() const noexcept { return measured() ? srtt_ns_ : 0; }
  i64 smoothed_network_ns() const noexcept {  // smoothed RTT without the delay of the hosts; 0: no sample
    return measured() ? std::max<i64>(srtt_ns_ - host_ns_, 1) : 0;
  }
  i64 expected_ns() const noexcept { return srtt_ns_; }  // 0: nothing is known
  i64 variation_ns() const noexcept { return rttvar_ns_; }
  i64 min_ns() const noexcept { return min_ns_; }

  // Retransmission timeout. At least `floor_ns` is added to the smoothed RTT: with little RTT variation a slightly late
  // host would otherwise look like a loss. Before the first sample the timeout is at least 20 times `floor_ns` (20 ms
  // by default). `allowance_ns`: scheduling delay of the hosts to allow for.
  i64 timeout_ns(i64 floor_ns, i64 ceiling_ns, u32 backoff, i64 allowance_ns = 0) const noexcept {
    const i64 sum = srtt_ns_ + std::max({floor_ns, 4 * variation_ns(), allowance_ns});
    const i64 base = measured() ? sum : std::max(sum, 20 * floor_ns);
    const u32 shift = std::min(backoff, 20u);
    return base > ceiling_ns >> shift ? ceiling_ns : base << shift;
  }

 private:
  static u32 bounded(i64 ns) noexcept { return static_cast<u32>(std::min<i64>(ns, 0xFFFF'FFFF)); }

  i64 srtt_ns_ = 0;
  i64 min_ns_ = 0;
  u32 rttvar_ns_ = 0;
  u32 host_ns_ = 0;  // delay of the hosts that srtt_ns_ includes
};

}  // namespace weft::core
