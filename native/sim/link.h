// One direction of a link with a queue in front: sends datagrams in order at a rate, and delays, drops, marks and loses
// them.
#pragma once

#include <vector>

#include "native/core/random.h"
#include "native/sim/histogram.h"
#include "native/sim/packet.h"

namespace weft::sim {

struct LinkConfig {
  i64 bytes_per_s = 0;      // 0: sending takes no time, and nothing waits
  i64 delay_ns = 0;         // propagation delay
  i64 queue_bytes_max = 0;  // waiting or being sent; 0: no limit. One datagram always fits
  // ECN by the queue length at arrival: never marks below the first, always at or above the second, proportionally in
  // between. Equal: a step. Both 0: never.
  i64 mark_from_bytes = 0, mark_full_bytes = 0;
  double loss = 0;         // probability per datagram, on the wire
  i64 jitter_ns = 0;       // maximal random extra delay per datagram
  double reorder = 0;      // fraction of datagrams held back in addition
  i64 reorder_ns_max = 0;  // maximal time that they are held back
};

struct LinkTotals {
  i64 offered = 0, delivered = 0;  // datagrams
  i64 lost = 0;                    // on the wire
  i64 dropped = 0;                 // because the queue was full
  i64 swallowed = 0;               // because the link was down
  i64 marked = 0;
  i64 bytes_delivered = 0;
};

class Link {
 public:
  Link(u64 seed, const LinkConfig& config);

  // False: dropped; the caller keeps the header.
  bool offer(i64 now_ns, const Packet& packet);
  // Time of the next possible delivery.
  i64 next_ns() const noexcept;
  // Takes the next delivered datagram; false if there is none.
  bool poll(i64 now_ns, Packet* out);

  // Takes out any datagram still in the link, in no particular order; for tearing down the network.
  bool discard(Packet* out) noexcept {
    if (!late_.empty()) {
      *out = late_.back().packet;
      late_.pop_back();
      return true;
    }
    if (head_ == tail_) return false;
    *out = at(head_++).packet;
    return true;
  }

  // Datagrams in the queue are sent at the new rate from now on.
  void set_rate(i64 now_ns, i64 bytes_per_s);
  void set_loss(double loss) noexcept { config_.loss = loss; }
  void set_delay(i64 delay_ns) noexcept { config_.delay_ns = delay_ns; }
  void set_up(bool up) noexcept { up_ = up; }

  i64 queue_bytes(i64 now_ns) noexcept;
  std::size_t held() const noexcept { return tail_ - head_ + late_.size(); }
  const LinkConfig& config() const noexcept { return config_; }
  const LinkTotals& totals() const noexcept { return totals_; }
  const Histogram& queue_seen() const noexcept { return queue_seen_; }

 private:
  struct Entry {
    i64 leaves_ns = 0;  // when its last bit is sent
    i64 due_ns = 0;     // when it arrives if not held back
    i64 held_ns = 0;    // extra time that it is held back
    i64 comes_ns() const noexcept { return due_ns + held_ns; }
    u64 order = 0;
    Packet packet;
  };
  static bool later(const Entry& a, const Entry& b) noexcept {
    return a.comes_ns() != b.comes_ns() ? a.comes_ns() > b.comes_ns() : a.order > b.order;
  }
  Entry& at(u64 index) noexcept { return ring_[index & mask_]; }
  const Entry& at(u64 index) const noexcept { return ring_[index & mask_]; }
  void grow();
  void settle(i64 now_ns) noexcept;
  i64 serve_ns(i64 now_ns, i64 bytes) noexcept;
  i64 held_back_ns();
  bool marks(i64 queue_bytes);
  bool chance(double probability) { return probability > 0 && random_.uniform() < probability; }

  LinkConfig config_;
  core::Random random_;
  LinkTotals totals_;
  Histogram queue_seen_;
  std::vector<Entry> ring_;  // in order: [head_, left_) are on the wire, [left_, tail_) wait
  u64 mask_, head_ = 0, left_ = 0, tail_ = 0;
  std::vector<Entry> late_;  // a heap of those held back
  i64 busy_until_ps_ = 0;    // in picoseconds, as the time per byte is rarely a whole number of nanoseconds
  i64 waiting_bytes_ = 0;
  u64 order_ = 0;
  bool up_ = true;
};

}  // namespace weft::sim
