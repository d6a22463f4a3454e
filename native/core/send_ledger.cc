// Stores the sent segments in slabs of 32, found through a circular directory. Lists link segments by the low 32 bits
// of their sequence numbers.
#include "native/core/send_ledger.h"

#include <new>

namespace weft::core {

SendLedger::~SendLedger() {
  if (directory_ == nullptr) return;
  for (u64 i = 0; i <= directory_mask_; ++i) slabs_->give(directory_[i]);
}

bool SendLedger::reserve() noexcept {
  if (next_ - cumulative_ >= kWindowSegments) return false;
  if (next_ % kSlabSegments != 0 && next_ != cumulative_) return true;
  const u64 first_slab = cumulative_ / kSlabSegments;
  const u64 slab = next_ / kSlabSegments;
  if (directory_ == nullptr || slab - first_slab > directory_mask_) {
    if (!grow_directory()) return false;
  }
  Slab*& entry = directory_[slab & directory_mask_];
  if (entry == nullptr) entry = static_cast<Slab*>(slabs_->take());
  return entry != nullptr;
}

bool SendLedger::grow_directory() noexcept {
  const u64 entries = directory_ == nullptr ? 4 : 2 * (directory_mask_ + 1);
  std::unique_ptr<Slab*[]> larger(new (std::nothrow) Slab*[entries]());
  if (larger == nullptr) return false;
  if (directory_ != nullptr) {
    const u64 first = cumulative_ / kSlabSegments;
    for (u64 i = 0; i <= directory_mask_; ++i) {
      larger[(first + i) & (entries - 1)] = directory_[(first + i) & directory_mask_];
    }
  }
  directory_ = std::move(larger);
  directory_mask_ = entries - 1;
  return true;
}

u64 SendLedger::append(SegmentList* order, i64 now_ns, u8 path, u16 message_slot, u64 offset_bytes,
                       u16 payload_bytes) noexcept {
  const u64 seq = next_++;
  SentSegment& segment = at(seq);
  segment.sent_ns = now_ns;
  segment.offset_bytes = offset_bytes;
  segment.message_slot = message_slot;
  segment.payload_bytes = payload_bytes;
  segment.path = path;
  segment.state = SentSegment::in_flight;
  append_to(order, seq);
  inflight_bytes_ += payload_bytes;
  ++unresolved_;
  return seq;
}

void SendLedger::append_to(SegmentList* list, u64 seq) noexcept {
  SentSegment& segment = at(seq);
  segment.previous = list->tail;
  segment.next = kNone;
  const auto low = static_cast<u32>(seq);
  if (list->tail == kNone) {
    list->head = low;
  } else {
    at(seq_of(list->tail)).next = low;
  }
  list->tail = low;
}

void SendLedger::unlink(SegmentList* list, u64 seq) noexcept {
  SentSegment& segment = at(seq);
  if (segment.previous == kNone) {
    list->head = segment.next;
  } else {
    at(seq_of(segment.previous)).next = segment.next;
  }
  if (segment.next == kNone) {
    list->tail = segment.previous;
  } else {
    at(seq_of(segment.next)).previous = segment.previous;
  }
}

void SendLedger::on_lost(SegmentList* order, u64 seq) noexcept {
  SentSegment& segment = at(seq);
  unlink(order, seq);
  inflight_bytes_ -= segment.payload_bytes;
  segment.state = SentSegment::lost;
  append_to(&lost_, seq);
}

void SendLedger::on_resent(SegmentList* order, u64 seq, i64 now_ns, u8 path) noexcept {
  SentSegment& segment = at(seq);
  unlink(&lost_, seq);
  segment.state = SentSegment::in_flight;
  segment.sent_ns = now_ns;
  segment.path = path;
  inflight_bytes_ += segment.payload_bytes;
  append_to(order, seq);
}

void SendLedger::on_refused(SegmentList* order, u64 seq) noexcept {
  SentSegment& segment = at(seq);
  unlink(order, seq);
  inflight_bytes_ -= segment.payload_bytes;
  segment.state = SentSegment::held;
  --unresolved_;
  append_to(&held_, seq);
}

void SendLedger::on_room(u64 seq) noexcept {
  unlink(&held_, seq);
  at(seq).state = SentSegment::lost;
  ++unresolved_;
  append_to(&lost_, seq);
}

bool SendLedger::on_acked(SegmentList* order, u64 seq) noexcept {
  SentSegment& segment = at(seq);
  if (segment.state == SentSegment::acked) return false;
  if (segment.state != SentSegment::held) --unresolved_;
  if (segment.state == SentSegment::lost) {
    unlink(&lost_, seq);
  } else if (segment.state == SentSegment::held) {
    unlink(&held_, seq);
  } else {
    unlink(order, seq);
    inflight_bytes_ -= segment.payload_bytes;
  }
  segment.state = SentSegment::acked;
  return true;
}

void SendLedger::advance() noexcept {
  while (cumulative_ < next_ && at(cumulative_).state == SentSegment::acked) {
    ++cumulative_;
    // Returns a slab when all its segments are acknowledged, and the current slab when nothing is in flight.
    if (cumulative_ % kSlabSegments == 0 || cumulative_ == next_) {
      Slab*& entry = directory_[((cumulative_ - 1) / kSlabSegments) & directory_mask_];
      slabs_->give(entry);
      entry = nullptr;
    }
  }
}

}  // namespace weft::core
