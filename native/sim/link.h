// One direction of a wire behind a queue: serves datagrams in order at a rate, delays, drops, marks and loses them.
#pragma once

#include <vector>

#include "native/core/random.h"
#include "native/sim/histogram.h"
#include "native/sim/packet.h"

namespace weft::sim {

struct LinkConfig {
  i64 bytes_per_s = 0;      // 0: it takes no time to send, and nothing ever waits
  i64 delay_ns = 0;         // of propagation
  i64 queue_bytes_max = 0;  // what waits or is being sent; 0: without limit. One datagram always fits.
  // ECN, by what waits when a datagram comes: never below the first, always from the second on, in proportion between.
  // Equal: a step. Both 0: never.
  i64 mark_from_bytes = 0, mark_full_bytes = 0;
  double loss = 0;         // of a datagram, on the wire
  i64 jitter_ns = 0;       // each datagram takes up to so much longer
  double reorder = 0;      // how many are held back, on top of it
  i64 reorder_ns_max = 0;  // and for how long at most
};

struct LinkTotals {
  i64 offered = 0, delivered = 0;  // datagrams
  i64 lost = 0;                    // on the wire
  i64 dropped = 0;                 // the queue was full
  i64 swallowed = 0;               // the link was down
  i64 marked = 0;
  i64 bytes_delivered = 0;
};

class Link {
 public:
  Link(u64 seed, const LinkConfig& config);

  // False: dropped. The caller keeps the header.
  bool offer(i64 now_ns, const Packet& packet);
  // Nothing comes out of it before then.
  i64 next_ns() const noexcept;
  // The next datagram that has come to its end; false when none has.
  bool poll(i64 now_ns, Packet* out);

  // Whatever is still in it, in no order: for who takes the network down.
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

  // What waits is served at the new rate from now on.
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
    i64 leaves_ns = 0;  // the last bit is on the wire
    i64 due_ns = 0;     // and, undisturbed, at the other end
    i64 held_ns = 0;    // held back beyond that
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
  std::vector<Entry> ring_;  // in order: [head_, left_) fly, [left_, tail_) wait
  u64 mask_, head_ = 0, left_ = 0, tail_ = 0;
  std::vector<Entry> late_;  // a heap of those held back beyond their turn
  i64 busy_until_ps_ = 0;    // picoseconds: a rate in bytes a second is no whole number of nanoseconds a byte
  i64 waiting_bytes_ = 0;
  u64 order_ = 0;
  bool up_ = true;
};

}  // namespace weft::sim
