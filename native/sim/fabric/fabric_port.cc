// Sets up a port, applies the random properties of its link, and reports its counters.
#include "native/sim/fabric/fabric_port.h"

#include <algorithm>
#include <cmath>

namespace weft::sim {

void FabricPort::open(const PortPlan& plan, u32 index, u64 seed, const FabricRules* rules) {
  rules_ = rules;
  index_ = index;
  from_ = plan.from;
  to_ = plan.to;
  set_rate(plan.bytes_per_s);
  delay_ps_ = plan.delay_ns * kFabricPsPerNs;
  queue_bytes_max_ = plan.queue_bytes_max;
  seen_per_byte_ = static_cast<double>(kSeen) / static_cast<double>(queue_bytes_max_ + 1);
  mark_from_bytes_ = plan.mark_from_bytes;
  mark_full_bytes_ = plan.mark_full_bytes;
  loss_ = plan.loss;
  bit_error_rate_ = plan.bit_error_rate;
  reorder_ = plan.reorder;
  reorder_ps_max_ = plan.reorder_ns_max * kFabricPsPerNs;
  const double burst_s = static_cast<double>(plan.burst_bytes) / static_cast<double>(plan.bytes_per_s);
  burst_ps_ = static_cast<i64>(burst_s * static_cast<double>(kFabricPsPerS));
  free_ps_ = -burst_ps_;
  set_odd();
  random_ = core::Random(seed);
}

// Computes the time per byte if it is a whole number of picoseconds, which it is for the usual rates. At other
// rates every packet needs a division, which costs as much as the rest of its handling.
void FabricPort::set_rate(i64 bytes_per_s) noexcept {
  bytes_per_s_ = bytes_per_s;
  ps_per_byte_ = kFabricPsPerS % bytes_per_s == 0 ? kFabricPsPerS / bytes_per_s : 0;
}

bool FabricPort::lost_on_wire(i64 bytes) {
  if (loss_ > 0 && random_.uniform() < loss_) return true;
  if (bit_error_rate_ <= 0) return false;
  return random_.uniform() >= std::pow(1.0 - bit_error_rate_, 8.0 * static_cast<double>(bytes));
}

// Applies random loss, jitter and reordering; returns false if the packet is lost. No two packets that are not
// reordered arrive at the same time, so they stay in order.
bool FabricPort::survives(FabricPacket* packet, i64 bytes) {
  if (lost_on_wire(bytes)) return false;
  if (jitter_ps_ > 0) packet->due_ps += static_cast<i64>(random_.next() % static_cast<u64>(jitter_ps_));
  packet->due_ps = last_due_ps_ = std::max(packet->due_ps, last_due_ps_ + 1);
  if (reorder_ps_max_ > 0 && random_.uniform() < reorder_)
    packet->due_ps += static_cast<i64>(random_.next() % static_cast<u64>(reorder_ps_max_));
  return true;
}

void FabricPort::stamp(i64 at_ps, FabricPacket* packet) const noexcept {
  if (!packet->data || packet->hops == nullptr) return;
  packet->hops->add({low_bytes_ + high_bytes_, bytes_, kFabricBeginNs + at_ps / kFabricPsPerNs, bytes_per_s_});
}

void FabricPort::set_odd() noexcept {
  odd_ = loss_ > 0 || bit_error_rate_ > 0 || jitter_ps_ > 0 || reorder_ps_max_ > 0 || burst_ps_ > 0;
}

PortReport FabricPort::report() const {
  PortReport made;
  made.from = from_;
  made.to = to_;
  made.packets = packets_;
  made.bytes = bytes_;
  made.data_packets = data_packets_;
  made.marked = marked_;
  made.trimmed = trimmed_;
  made.dropped = dropped_;
  made.lost = lost_;
  made.pauses = pauses_;
  made.queue_bytes_max = queue_seen_max_;
  made.busy_ns = busy_ps_ / kFabricPsPerNs;
  u64 total = 0;
  for (const u32 count : seen_) total += count;
  const auto percentile = [&](double share) -> i64 {
    u64 seen = 0;
    for (std::size_t i = 0; i < kSeen && total != 0; ++i) {
      seen += seen_[i];
      if (static_cast<double>(seen) < share * static_cast<double>(total)) continue;
      const i64 end = static_cast<i64>(i + 1) * (queue_bytes_max_ + 1) / static_cast<i64>(kSeen);
      return i == 0 && seen_[0] == total && queue_seen_max_ == 0 ? 0 : std::min(end, queue_seen_max_);
    }
    return 0;
  };
  made.queue_bytes_p50 = percentile(0.50);
  made.queue_bytes_p95 = percentile(0.95);
  made.queue_bytes_p99 = percentile(0.99);
  return made;
}

}  // namespace weft::sim
