// Sends the packets of a port in order of arrival, within two priorities. A full queue trims or drops packets. ECN
// marks depend on the queue length when a segment is sent. A packet whose sending has begun arrives even if the link
// then fails.
#include "native/sim/fabric/fabric_port.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

i64 FabricPort::takes_ps(i64 bytes) const noexcept {
  constexpr i64 kExactBytes = 9'000'000;  // with more bytes, the product below would overflow
  if (ps_per_byte_ != 0) return bytes * ps_per_byte_;
  if (bytes <= kExactBytes) return bytes * kFabricPsPerS / bytes_per_s_;
  return static_cast<i64>(static_cast<double>(bytes) * 1e12 / static_cast<double>(bytes_per_s_));
}

bool FabricPort::lost_on_wire(i64 bytes) {
  if (loss_ > 0 && random_.uniform() < loss_) return true;
  if (bit_error_rate_ <= 0) return false;
  return random_.uniform() >= std::pow(1.0 - bit_error_rate_, 8.0 * static_cast<double>(bytes));
}

void FabricPort::mark(FabricPacket* packet, i64 queue_bytes) {
  if (mark_full_bytes_ <= 0 || queue_bytes < mark_from_bytes_) return;
  if (queue_bytes < mark_full_bytes_) {
    const auto above = static_cast<double>(queue_bytes - mark_from_bytes_);
    if (random_.uniform() >= above / static_cast<double>(mark_full_bytes_ - mark_from_bytes_)) return;
  }
  packet->marked = true;
  ++marked_;
}

void FabricPort::start(i64 at_ps, FabricPacket* packet, FabricSink* sink) {
  const i64 bytes = wire_bytes(*packet);
  const bool low = packet->data && !packet->trimmed;
  if (low) mark(packet, low_bytes_ + bytes);
  sending_low_bytes_ = low ? bytes : 0;
  const i64 takes = takes_ps(bytes);
  // Token bucket: a port that was idle may send ahead of its rate, up to the size of the bucket.
  free_ps_ = odd_ ? std::max(free_ps_, at_ps - burst_ps_) + takes : at_ps + takes;
  busy_ps_ += takes;
  ++packets_;
  bytes_ += bytes;
  if (packet->data) ++data_packets_;
  sink->leave(*packet, index_, at_ps);
  packet->due_ps = std::max(free_ps_, at_ps) + delay_ps_;
  if (odd_ && !survives(packet, bytes)) {
    ++lost_;
    sink->lose(packet);
    return;
  }
  sink->arrive(packet, index_, to_);
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

void FabricPort::set_odd() noexcept {
  odd_ = loss_ > 0 || bit_error_rate_ > 0 || jitter_ps_ > 0 || reorder_ps_max_ > 0 || burst_ps_ > 0;
}

void FabricPort::advance(i64 until_ps, FabricSink* sink) {
  if (paused_ || !up_) return;
  while (free_ps_ <= until_ps && waits()) {
    FabricPacket* packet;
    if (high_.head != nullptr && (low_.head == nullptr || high_in_a_row_ < kHighInARowMax)) {
      high_in_a_row_ = low_.head == nullptr ? 0 : high_in_a_row_ + 1;
      packet = high_.pop();
      high_bytes_ -= wire_bytes(*packet);
    } else {
      high_in_a_row_ = 0;
      packet = low_.pop();
      low_bytes_ -= wire_bytes(*packet);
    }
    start(free_ps_, packet, sink);
  }
}

void FabricPort::join_high(FabricPacket* packet, FabricSink* sink) {
  const i64 bytes = wire_bytes(*packet);
  if (high_bytes_ + bytes > rules_->header_queue_bytes_max) {
    ++dropped_;
    sink->leave(*packet, index_, 0);
    sink->lose(packet);
    return;
  }
  high_.push(packet);
  high_bytes_ += bytes;
}

// Handles a full queue. As in NDP (Handley et al., SIGCOMM 2017, section 3.1), it trims at random either the arriving
// packet or the last one in the queue; otherwise synchronised flows would always lose the payload of the same packet.
// Returns false if `packet`, now trimmed, must still be queued.
bool FabricPort::overflow(FabricPacket* packet, FabricSink* sink) {
  if (!rules_->trim) {
    ++dropped_;
    sink->leave(*packet, index_, 0);
    sink->lose(packet);
    return true;
  }
  const bool other = low_.tail != nullptr && low_.tail->data && !low_.tail->trimmed && (random_.next() & 1u) != 0;
  if (other) {
    low_bytes_ += wire_bytes(*packet) - wire_bytes(*low_.tail);
    std::swap(*packet, *low_.tail);
    std::swap(packet->next, low_.tail->next);
  }
  packet->trimmed = true;
  packet->last_hop = leads_to_host_;
  packet->first = true;
  ++trimmed_;
  return false;
}

void FabricPort::offer(i64 now_ps, FabricPacket* packet, FabricSink* sink) {
  advance(now_ps, sink);
  if (!up_) {
    ++lost_;
    sink->leave(*packet, index_, 0);
    sink->lose(packet);
    return;
  }
  if (packet->data && !packet->trimmed) {
    const i64 held = queue_bytes(now_ps);
    const auto share = static_cast<std::size_t>(static_cast<double>(held) * seen_per_byte_);
    ++seen_[std::min(share, kSeen - 1)];
    queue_seen_max_ = std::max(queue_seen_max_, held);
    if (held != 0 && held + wire_bytes(*packet) > queue_bytes_max_ && overflow(packet, sink)) return;
  }
  if (!waits() && free_ps_ <= now_ps && !paused_) {
    start(now_ps, packet, sink);
  } else if (packet->first && rules_->priority) {
    join_high(packet, sink);
  } else {
    low_.push(packet);
    low_bytes_ += wire_bytes(*packet);
  }
}

void FabricPort::apply(i64 now_ps, const PortChange& change, FabricSink* sink) {
  advance(now_ps, sink);
  if (change.bytes_per_s >= 0) {
    const double share = static_cast<double>(bytes_per_s_) / static_cast<double>(change.bytes_per_s);
    burst_ps_ = static_cast<i64>(static_cast<double>(burst_ps_) * share);  // the bucket keeps its size in bytes
    set_rate(change.bytes_per_s);
  }
  if (change.loss >= 0) {
    loss_ = change.loss;
    odd_ = odd_ || loss_ > 0;
  }
  if (change.up == 1 && !up_) free_ps_ = std::max(free_ps_, now_ps);
  if (change.up >= 0) up_ = change.up == 1;
  for (Queue* queue : {&high_, &low_}) {
    while (!up_ && queue->head != nullptr) {
      FabricPacket* packet = queue->pop();
      ++lost_;
      sink->leave(*packet, index_, 0);
      sink->lose(packet);
    }
  }
  if (!up_) low_bytes_ = high_bytes_ = 0;
}

void FabricPort::pause(i64 now_ps, bool paused, FabricSink* sink) {
  advance(now_ps, sink);
  if (paused && !paused_) ++pauses_;
  if (!paused && paused_) free_ps_ = std::max(free_ps_, now_ps);
  paused_ = paused;
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
