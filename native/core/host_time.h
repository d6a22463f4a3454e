// Measures how long datagrams and acknowledgments waited for this host's CPU rather than for the network: a datagram
// waits in its socket until the engine's thread runs, and the engine reports when it did not run.
#pragma once

#include <algorithm>
#include <array>

#include "native/core/types.h"

namespace weft::core {

// The longest recent delay; it halves with every second without a longer one.
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
  static constexpr i64 kMostNs = 100'000'000;  // timeouts do not allow for a host that stops for longer
  i64 peak_ns_ = 0;
  i64 since_ns_ = 0;
};

class HostTime {
 public:
  // Sets the datagram being processed. `arrived_ns`: kernel time stamp; 0: unknown. It may be later than `now_ns`,
  // which is the start of the engine's loop iteration.
  void on_datagram(i64 now_ns, i64 arrived_ns) noexcept {
    arrived_ns_ = arrived_ns > 0 ? arrived_ns : now_ns;
    late_ns_ = std::max<i64>(now_ns - arrived_ns_, 0);
    late_peak_.add(now_ns, late_ns_);
  }
  // The thread of this stack did not run during the interval: it slept or was preempted. Overlapping intervals are
  // merged, so that the common part counts once.
  void on_away(i64 from_ns, i64 to_ns) noexcept {
    if (to_ns <= to_ns_) return;
    if (from_ns > to_ns_) from_ns_ = from_ns;
    away_ns_ += to_ns - std::max(from_ns, to_ns_);
    to_ns_ = to_ns;
  }

  // The thread was interrupted between stamping segments and passing them to the kernel, so these send times give no
  // valid RTT sample.
  void on_late_departure(i64 first_sent_ns, i64 last_sent_ns) noexcept {
    departures_[next_departure_++ % departures_.size()] = {first_sent_ns, last_sent_ns};
  }
  bool left_late(i64 sent_ns) const noexcept {
    return std::any_of(departures_.begin(), departures_.end(),
                       [&](const Departure& each) { return sent_ns >= each.first_ns && sent_ns <= each.last_ns; });
  }

  i64 arrived_ns() const noexcept { return arrived_ns_; }
  // How long the datagram waited in its socket; and the longest recent wait.
  i64 late_ns() const noexcept { return late_ns_; }
  i64 late_peak_ns() const noexcept { return late_peak_.peak_ns(); }
  // Total time during which the thread did not run: until now, and until the current datagram arrived.
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
  i64 from_ns_ = 0, to_ns_ = 0;  // the last interval away
};

}  // namespace weft::core
