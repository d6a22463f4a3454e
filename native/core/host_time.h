// Measures scheduling delay: how long datagrams waited in their socket because the engine's thread did not run. That
// time is not part of the network's delay.
#pragma once

#include <algorithm>
#include <array>

#include "native/core/types.h"

namespace weft::core {

// Keeps the longest recent delay; the value halves in every second without a longer delay.
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
  static constexpr i64 kMostNs = 100'000'000;  // longer delays count as this much, so that timeouts stay short
  i64 peak_ns_ = 0;
  i64 since_ns_ = 0;
};

class HostTime {
 public:
  // Starts the processing of a datagram. `arrived_ns`: its kernel time stamp, or 0 if unknown. It may be later than
  // `now_ns`, the start of the engine's loop iteration.
  void on_datagram(i64 now_ns, i64 arrived_ns) noexcept {
    arrived_ns_ = arrived_ns > 0 ? arrived_ns : now_ns;
    late_ns_ = std::max<i64>(now_ns - arrived_ns_, 0);
    late_peak_.add(now_ns, late_ns_);
  }
  // Notes an interval in which the engine's thread slept or was preempted. Where intervals overlap, the time counts
  // once.
  void on_away(i64 from_ns, i64 to_ns) noexcept {
    if (to_ns <= to_ns_) return;
    if (from_ns > to_ns_) from_ns_ = from_ns;
    away_ns_ += to_ns - std::max(from_ns, to_ns_);
    to_ns_ = to_ns;
  }

  // Notes that segments with these send times were passed to the kernel late, because the thread was interrupted. Such
  // segments give no valid RTT samples.
  void on_late_departure(i64 first_sent_ns, i64 last_sent_ns) noexcept {
    departures_[next_departure_++ % departures_.size()] = {first_sent_ns, last_sent_ns};
  }
  bool left_late(i64 sent_ns) const noexcept {
    return std::any_of(departures_.begin(), departures_.end(),
                       [&](const Departure& each) { return sent_ns >= each.first_ns && sent_ns <= each.last_ns; });
  }

  i64 arrived_ns() const noexcept { return arrived_ns_; }
  // How long the current datagram waited in its socket. late_peak_ns() is the longest recent wait.
  i64 late_ns() const noexcept { return late_ns_; }
  i64 late_peak_ns() const noexcept { return late_peak_.peak_ns(); }
  // Total time in which the engine's thread did not run, until now. away_at_arrival_ns(): until the current datagram
  // arrived.
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
  i64 from_ns_ = 0, to_ns_ = 0;  // the last interval in which the thread did not run
};

}  // namespace weft::core
