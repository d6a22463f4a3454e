// One direction of a link with a queue in front. It sends datagrams in order at a rate, and delays, drops, marks and
// loses them.
#pragma once

#include <vector>

#include "native/core/random.h"
#include "native/sim/histogram.h"
#include "native/sim/packet.h"

namespace weft::sim {

struct LinkConfig {
  i64 bytes_per_s = 0;      // 0: sending takes no time, so no datagram is queued
  i64 delay_ns = 0;         // propagation delay
  i64 queue_bytes_max = 0;  // limit for bytes queued or being sent; 0: none. One datagram always fits
  // ECN marks by the queue length at arrival: none below mark_from_bytes, all at or above mark_full_bytes, and in
  // between a proportional share. If the two are equal, marking starts abruptly. If both are 0, nothing is marked.
  i64 mark_from_bytes = 0, mark_full_bytes = 0;
  double loss = 0;         // loss probability of a datagram on the wire
  i64 jitter_ns = 0;       // upper bound of the random delay that is added to a datagram
  double reorder = 0;      // fraction of datagrams that are delayed further, and so reordered
  i64 reorder_ns_max = 0;  // largest additional delay of a reordered datagram
};

struct LinkTotals {
  i64 offered = 0, delivered = 0;  // number of datagrams
  i64 lost = 0;                    // datagrams lost on the wire
  i64 dropped = 0;                 // datagrams dropped because the queue was full
  i64 swallowed = 0;               // datagrams dropped because the link was down
  i64 marked = 0;
  i64 bytes_delivered = 0;
};

class Link {
 public:
  Link(u64 seed, const LinkConfig& config);

  // Accepts a datagram. Returns false if it is dropped; the caller then keeps the header.
  bool offer(i64 now_ns, const Packet& packet);
  // The earliest time at which a datagram may be delivered.
  i64 next_ns() const noexcept;
  // Takes the next datagram that has arrived. Returns false if there is none.
  bool poll(i64 now_ns, Packet* out);

  // Takes out any datagram that is still in the link, in no particular order. Used to dismantle the network.
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
    i64 leaves_ns = 0;  // when the datagram's last bit is sent
    i64 due_ns = 0;     // when the datagram arrives unless it is delayed further
    i64 held_ns = 0;    // additional delay of a reordered datagram
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
  void advance(i64 now_ns) noexcept;
  i64 serve_ns(i64 now_ns, i64 bytes) noexcept;
  i64 held_back_ns();
  bool marks(i64 queue_bytes);
  bool chance(double probability) { return probability > 0 && random_.uniform() < probability; }

  LinkConfig config_;
  core::Random random_;
  LinkTotals totals_;
  Histogram queue_seen_;
  std::vector<Entry> ring_;  // datagrams in order: [head_, left_) on the wire, [left_, tail_) queued
  u64 mask_, head_ = 0, left_ = 0, tail_ = 0;
  std::vector<Entry> late_;  // a heap of datagrams that are delayed further
  i64 busy_until_ps_ = 0;    // picoseconds, because the time per byte is rarely a whole number of ns
  i64 waiting_bytes_ = 0;
  u64 order_ = 0;
  bool up_ = true;
};

}  // namespace weft::sim
