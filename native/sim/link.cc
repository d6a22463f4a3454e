// Datagrams are sent in order of arrival, so their send times are known when they are accepted; only a change of
// the rate alters these times. Datagrams are lost on the wire, behind the queue, so lost ones use up rate too.
#include "native/sim/link.h"

#include <algorithm>

namespace weft::sim {
namespace {

constexpr i64 kPsPerNs = 1000;
constexpr i64 kPsPerS = 1'000'000'000'000;

}  // namespace

Link::Link(u64 seed, const LinkConfig& config) : config_(config), random_(seed), ring_(64), mask_(63) {}

void Link::grow() {
  std::vector<Entry> wider(2 * ring_.size());
  const u64 wider_mask = wider.size() - 1;
  for (u64 i = head_; i != tail_; ++i) wider[i & wider_mask] = at(i);
  ring_ = std::move(wider);
  mask_ = wider_mask;
}

// Moves datagrams from the queue to the wire once their last bit is sent.
void Link::advance(i64 now_ns) noexcept {
  while (left_ != tail_ && at(left_).leaves_ns <= now_ns) waiting_bytes_ -= at(left_++).packet.bytes();
}

i64 Link::queue_bytes(i64 now_ns) noexcept {
  advance(now_ns);
  return waiting_bytes_;
}

i64 Link::serve_ns(i64 now_ns, i64 bytes) noexcept {
  if (config_.bytes_per_s <= 0) return now_ns;
  const i64 takes_ps = bytes * kPsPerS / config_.bytes_per_s;
  busy_until_ps_ = std::max(busy_until_ps_, now_ns * kPsPerNs) + takes_ps;
  return (busy_until_ps_ + kPsPerNs - 1) / kPsPerNs;
}

i64 Link::held_back_ns() {
  i64 held_ns = 0;
  if (config_.jitter_ns > 0) held_ns += static_cast<i64>(random_.next() % static_cast<u64>(config_.jitter_ns));
  if (config_.reorder_ns_max > 0 && chance(config_.reorder)) {
    held_ns += static_cast<i64>(random_.next() % static_cast<u64>(config_.reorder_ns_max));
  }
  return held_ns;
}

bool Link::marks(i64 queue_bytes) {
  if (config_.mark_full_bytes <= 0 || queue_bytes < config_.mark_from_bytes) return false;
  if (queue_bytes >= config_.mark_full_bytes) return true;
  const auto above = static_cast<double>(queue_bytes - config_.mark_from_bytes);
  return chance(above / static_cast<double>(config_.mark_full_bytes - config_.mark_from_bytes));
}

bool Link::offer(i64 now_ns, const Packet& packet) {
  ++totals_.offered;
  if (!up_) {
    ++totals_.swallowed;
    return false;
  }
  advance(now_ns);
  queue_seen_.add(waiting_bytes_);
  const i64 bytes = packet.bytes();
  if (config_.queue_bytes_max > 0 && waiting_bytes_ != 0 && waiting_bytes_ + bytes > config_.queue_bytes_max) {
    ++totals_.dropped;
    return false;
  }
  if (tail_ - head_ == ring_.size()) grow();
  Entry& entry = at(tail_);
  entry.packet = packet;
  if (marks(waiting_bytes_)) {
    entry.packet.congestion_experienced = true;
    ++totals_.marked;
  }
  entry.packet.lost = packet.lost || chance(config_.loss);
  entry.leaves_ns = serve_ns(now_ns, bytes);
  entry.due_ns = entry.leaves_ns + config_.delay_ns;
  entry.held_ns = held_back_ns();
  entry.order = order_++;
  ++tail_;
  waiting_bytes_ += bytes;
  advance(now_ns);
  return true;
}

i64 Link::next_ns() const noexcept {
  i64 next_ns = late_.empty() ? core::kNever : late_.front().comes_ns();
  // No other datagram on the wire can be delivered before the first one is due.
  if (head_ != tail_) next_ns = std::min(next_ns, at(head_).due_ns);
  return next_ns;
}

bool Link::poll(i64 now_ns, Packet* out) {
  advance(now_ns);
  for (;;) {
    const bool first_is_due = head_ != left_ && at(head_).due_ns <= now_ns;
    if (!late_.empty() && late_.front().comes_ns() <= now_ns &&
        (!first_is_due || late_.front().comes_ns() <= at(head_).due_ns)) {
      std::pop_heap(late_.begin(), late_.end(), later);
      *out = late_.back().packet;
      late_.pop_back();
      break;
    }
    if (!first_is_due) return false;
    const Entry& first = at(head_++);
    if (first.comes_ns() <= now_ns) {
      *out = first.packet;
      break;
    }
    late_.push_back(first);
    std::push_heap(late_.begin(), late_.end(), later);
  }
  if (out->lost) {
    ++totals_.lost;
  } else {
    ++totals_.delivered;
    totals_.bytes_delivered += out->bytes();
  }
  return true;
}

void Link::set_rate(i64 now_ns, i64 bytes_per_s) {
  advance(now_ns);
  const i64 before = config_.bytes_per_s;
  config_.bytes_per_s = bytes_per_s;
  i64 spent_ps = before > 0 && left_ != tail_ ? now_ns * kPsPerNs : 0;
  busy_until_ps_ = now_ns * kPsPerNs;
  for (u64 i = left_; i != tail_; ++i) {
    Entry& entry = at(i);
    i64 bytes = entry.packet.bytes();
    if (spent_ps != 0) {
      // The first datagram is being sent now: its remaining bytes are sent at the new rate.
      const i64 left_ps = entry.leaves_ns * kPsPerNs - spent_ps;
      bytes = std::min(bytes, (left_ps / kPsPerNs) * before / 1'000'000'000 + 1);
      spent_ps = 0;
    }
    const i64 delay_ns = entry.due_ns - entry.leaves_ns;
    entry.leaves_ns = serve_ns(now_ns, bytes);
    entry.due_ns = entry.leaves_ns + delay_ns;
  }
}

}  // namespace weft::sim
