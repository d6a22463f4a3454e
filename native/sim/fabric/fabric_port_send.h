// The functions of a port that pass packets to a sink; fabric_port.h includes this file. Packets leave in order of
// arrival, within two priorities. A full queue trims or drops packets. ECN marks depend on the queue length when a
// segment is sent. A packet whose sending has begun arrives even if the link then fails.
#pragma once

#include <algorithm>
#include <utility>

#include "native/sim/fabric/fabric_port.h"

namespace weft::sim {

inline i64 FabricPort::takes_ps(i64 bytes) const noexcept {
  constexpr i64 kExactBytes = 9'000'000;  // with more bytes, the product below would overflow
  if (ps_per_byte_ != 0) return bytes * ps_per_byte_;
  if (bytes <= kExactBytes) return bytes * kFabricPsPerS / bytes_per_s_;
  return static_cast<i64>(static_cast<double>(bytes) * 1e12 / static_cast<double>(bytes_per_s_));
}

inline void FabricPort::mark(FabricPacket* packet, i64 queue_bytes) {
  if (mark_full_bytes_ <= 0 || queue_bytes < mark_from_bytes_) return;
  if (queue_bytes < mark_full_bytes_) {
    const auto above = static_cast<double>(queue_bytes - mark_from_bytes_);
    if (random_.uniform() >= above / static_cast<double>(mark_full_bytes_ - mark_from_bytes_)) return;
  }
  packet->marked = true;
  ++marked_;
}

template <class Sink>
inline void FabricPort::start(i64 at_ps, FabricPacket* packet, i64 bytes, Sink* sink) {
  const bool low = packet->data && !packet->trimmed;
  if (low) mark(packet, low_bytes_ + bytes);
  if (stamps_) stamp(at_ps, packet);
  sending_low_bytes_ = low ? static_cast<u32>(bytes) : 0;
  const i64 takes = takes_ps(bytes);
  // Token bucket: a port that was idle may send ahead of its rate, up to the size of the bucket.
  free_ps_ = odd_ ? std::max(free_ps_, at_ps - burst_ps_) + takes : at_ps + takes;
  busy_ps_ += takes;
  ++packets_;
  bytes_ += bytes;
  data_packets_ += packet->data ? 1 : 0;
  sink->leave(*packet, index_, at_ps);
  packet->due_ps = std::max(free_ps_, at_ps) + delay_ps_;
  if (odd_ && !survives(packet, bytes)) {
    ++lost_;
    sink->lose(packet);
    return;
  }
  sink->arrive(packet, index_, to_);
}

template <class Sink>
void FabricPort::advance(i64 until_ps, Sink* sink) {
  if (free_ps_ > until_ps || !waits() || paused_ || !up_) return;
  do {
    FabricPacket* packet;
    i64 bytes;
    if (high_waits_ && (low_.head == nullptr || high_in_a_row_ < kHighInARowMax)) {
      high_in_a_row_ = low_.head == nullptr ? u16{0} : static_cast<u16>(high_in_a_row_ + 1);
      packet = high_.pop();
      high_waits_ = high_.head != nullptr;
      bytes = wire_bytes(*packet);
      high_bytes_ -= bytes;
    } else {
      high_in_a_row_ = 0;
      packet = low_.pop();
      bytes = wire_bytes(*packet);
      add_low(-bytes);
    }
    prefetch_head();
    start(free_ps_, packet, bytes, sink);
  } while (free_ps_ <= until_ps && waits());
}

template <class Sink>
void FabricPort::drop(FabricPacket* packet, i64* count, Sink* sink) {
  ++*count;
  sink->leave(*packet, index_, 0);
  sink->lose(packet);
}

template <class Sink>
void FabricPort::join_high(FabricPacket* packet, i64 bytes, Sink* sink) {
  if (high_bytes_ + bytes > rules_->header_queue_bytes_max) return drop(packet, &dropped_, sink);
  high_.push(packet);
  high_waits_ = true;
  high_bytes_ += bytes;
}

// Whether a data packet finds the queue full. A packet that is sent at once needs no room.
inline bool FabricPort::is_full(i64 held_bytes, i64 packet_bytes) const noexcept {
  if (held_bytes == 0 && !paused_) return false;
  if (held_bytes + packet_bytes > queue_bytes_max_) return true;
  return rules_->buffer != nullptr && rules_->buffer->is_full(held_bytes + packet_bytes, packet_bytes);
}

// Handles a full queue. As in NDP (Handley et al., SIGCOMM 2017, section 3.1), it trims at random either the arriving
// packet or the last one in the queue; otherwise synchronised flows would always lose the payload of the same packet.
// Returns false if `packet`, now trimmed, must still be queued.
template <class Sink>
bool FabricPort::overflow(FabricPacket* packet, Sink* sink) {
  if (!rules_->trim) {
    drop(packet, &dropped_, sink);
    return true;
  }
  const bool other = low_.tail != nullptr && low_.tail->data && !low_.tail->trimmed && (random_.next() & 1u) != 0;
  if (other) {
    add_low(wire_bytes(*packet) - wire_bytes(*low_.tail));
    std::swap(*packet, *low_.tail);
    std::swap(packet->next, low_.tail->next);
  }
  packet->trimmed = true;
  packet->last_hop = leads_to_host_;
  packet->first = true;
  ++trimmed_;
  return false;
}

template <class Sink>
void FabricPort::offer(i64 now_ps, FabricPacket* packet, Sink* sink) {
  advance(now_ps, sink);
  if (!up_) return drop(packet, &lost_, sink);
  i64 bytes = wire_bytes(*packet);
  if (packet->data && !packet->trimmed) {
    const i64 held = queue_bytes(now_ps);
    if (held == 0) {
      ++seen_[0];
    } else {
      const auto share = static_cast<std::size_t>(static_cast<double>(held) * seen_per_byte_);
      ++seen_[std::min(share, kSeen - 1)];
      queue_seen_max_ = std::max(queue_seen_max_, held);
    }
    if (is_full(held, bytes)) {
      if (overflow(packet, sink)) return;
      bytes = wire_bytes(*packet);
    }
  }
  if (free_ps_ <= now_ps && !waits() && !paused_) {
    start(now_ps, packet, bytes, sink);
  } else if (packet->first && rules_->priority) {
    join_high(packet, bytes, sink);
  } else {
    low_.push(packet);
    add_low(bytes);
  }
}

template <class Sink>
void FabricPort::apply(i64 now_ps, const PortChange& change, Sink* sink) {
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
    while (!up_ && queue->head != nullptr) drop(queue->pop(), &lost_, sink);
  }
  if (up_) return;
  add_low(-low_bytes_);
  high_bytes_ = 0;
  high_waits_ = false;
}

template <class Sink>
void FabricPort::pause(i64 now_ps, bool paused, Sink* sink) {
  advance(now_ps, sink);
  if (paused && !paused_) ++pauses_;
  if (!paused && paused_) free_ps_ = std::max(free_ps_, now_ps);
  paused_ = paused;
}

}  // namespace weft::sim
