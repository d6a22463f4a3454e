// How long datagrams and acknowledgments waited for this host's processor, and not for the network.
// A datagram waits in its socket until the engine's thread runs; the engine tells when it did not.
#pragma once

#include <algorithm>
#include <array>

#include "native/core/types.h"

namespace weft::core {

// The longest delay of the last seconds: it halves with every second in which none is longer.
class HostPeak {
 public:
  void add(i64 now_ns, i64 delay_ns) noexcept {
    if (const i64 halvings = (now_ns - since_ns_) / kHalfNs; halvings > 0) {
      peak_ns_ >>= std::min<i64>(halvings, 62);
      since_ns_ = now_ns;
    }
    if (delay_ns <= peak_ns_) return;
    peak_ns_ = std::min(delay_ns, kMostNs);
    since_ns_ = now_ns;
  }
  i64 peak_ns() const noexcept { return peak_ns_; }

 private:
  static constexpr i64 kHalfNs = 1'000'000'000;
  static constexpr i64 kMostNs = 100'000'000;  // a host that is away for longer has stopped, and is not waited for
  i64 peak_ns_ = 0;
  i64 since_ns_ = 0;
};

class HostTime {
 public:
  // The datagram in hand. `arrived_ns`: when the kernel had it; 0 where that is not known. It may be after `now_ns`,
  // which is when the round began.
  void on_datagram(i64 now_ns, i64 arrived_ns) noexcept {
    arrived_ns_ = arrived_ns > 0 ? arrived_ns : now_ns;
    late_ns_ = std::max<i64>(now_ns - arrived_ns_, 0);
    late_peak_.add(now_ns, late_ns_);
  }
  // The thread of this stack did not run in between: it slept, or another had the processor. Where two intervals
  // overlap, the common part counts once, and both together are one time away.
  void on_away(i64 from_ns, i64 to_ns) noexcept {
    if (to_ns <= to_ns_) return;
    if (from_ns > to_ns_) from_ns_ = from_ns;
    away_ns_ += to_ns - std::max(from_ns, to_ns_);
    to_ns_ = to_ns;
  }

  // The thread was interrupted between stamping segments and handing them to the kernel: their stamps say nothing.
  void on_late_departure(i64 first_sent_ns, i64 last_sent_ns) noexcept {
    departures_[next_departure_++ % departures_.size()] = {first_sent_ns, last_sent_ns};
  }
  bool left_late(i64 sent_ns) const noexcept {
    return std::any_of(departures_.begin(), departures_.end(),
                       [&](const Departure& each) { return sent_ns >= each.first_ns && sent_ns <= each.last_ns; });
  }

  i64 arrived_ns() const noexcept { return arrived_ns_; }
  // How long it waited in its socket; and the longest such wait of the last seconds.
  i64 late_ns() const noexcept { return late_ns_; }
  i64 late_peak_ns() const noexcept { return late_peak_.peak_ns(); }
  // Total time in which the thread did not run: until now, and until the datagram in hand arrived.
  i64 away_ns() const noexcept { return away_ns_; }
  i64 away_at_arrival_ns() const noexcept {
    return away_ns_ - std::max<i64>(to_ns_ - std::max(arrived_ns_, from_ns_), 0);
  }

 private:
  struct Departure {
    i64 first_ns = 0, last_ns = -1;
  };
  std::array<Departure, 4> departures_;
  u32 next_departure_ = 0;
  HostPeak late_peak_;
  i64 arrived_ns_ = 0;
  i64 late_ns_ = 0;
  i64 away_ns_ = 0;
  i64 from_ns_ = 0, to_ns_ = 0;  // the last time it was away
};

}  // namespace weft::core
