// Records the sent segments until they are acknowledged: their bytes, path and send time, the send order of each path,
// and which must be resent.
#pragma once

#include <cstddef>
#include <memory>

#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::core {

struct SentSegment {
  enum State : u8 { in_flight, lost, acked, held };  // held: the receiver refused the segment for lack of memory
  i64 sent_ns;
  u64 offset_bytes;    // offset of the segment within the message
  u32 previous, next;  // neighbours in a list of segments, by the low 32 bits of their sequence numbers
  u16 message_slot;
  u16 payload_bytes;
  u8 path;  // path on which the segment was last sent
  State state;
};
static_assert(sizeof(SentSegment) == 32);

// A doubly linked list of segments, linked by their `previous` and `next`.
struct SegmentList {
  u32 head = kNone, tail = kNone;
  bool empty() const noexcept { return head == kNone; }
};

class SendLedger {
 public:
  static constexpr std::size_t kSlabSegments = 32;
  struct Slab {
    SentSegment segments[kSlabSegments];
  };

  explicit SendLedger(SlabPool* slabs) noexcept : slabs_(slabs) {}
  SendLedger(const SendLedger&) = delete;
  SendLedger& operator=(const SendLedger&) = delete;
  ~SendLedger();

  u64 next_seq() const noexcept { return next_; }
  u64 cumulative_seq() const noexcept { return cumulative_; }
  bool empty() const noexcept { return next_ == cumulative_; }
  i64 inflight_bytes() const noexcept { return inflight_bytes_; }  // sent, and neither acknowledged, lost nor refused
  bool has_lost() const noexcept { return !lost_.empty(); }
  u64 unresolved() const noexcept { return unresolved_; }  // segments that are neither acknowledged nor held
  bool holds(u64 seq) const noexcept { return seq >= cumulative_ && seq < next_; }

  // Allocates the record of segment `next_seq()`. False when the sequence window is full or memory ran out.
  bool reserve() noexcept;
  // Records a new segment in flight and returns its sequence number. reserve() must have succeeded before.
  u64 append(SegmentList* order, i64 now_ns, u8 path, u16 message_slot, u64 offset_bytes, u16 payload_bytes) noexcept;

  void prefetch() const noexcept {
    if (directory_ == nullptr) return;
    const auto place = (cumulative_ / kSlabSegments) & directory_mask_;
    __builtin_prefetch(static_cast<const void*>(&directory_[place]));
  }
  // Prefetches the oldest segments that are not acknowledged, and the records of the next ones. Two fit a cache line.
  void prefetch_segments() const noexcept {
    constexpr u64 kOldest = 48, kNext = 8;
    if (directory_ == nullptr) return;
    for (u64 seq = cumulative_; seq < next_ + kNext && seq < cumulative_ + kOldest + kNext; seq += 2) {
      const Slab* const slab = directory_[(seq / kSlabSegments) & directory_mask_];
      if (slab != nullptr) __builtin_prefetch(&slab->segments[seq % kSlabSegments], 1, 2);
    }
  }
  SentSegment& at(u64 seq) noexcept { return slab_of(seq)->segments[seq % kSlabSegments]; }
  u64 seq_of(u32 low) const noexcept { return expand32(cumulative_ + kWindowSegments / 2, low); }

  // Sequence number of the oldest segment to be resent; ~0: none.
  u64 first_lost() const noexcept { return lost_.empty() ? ~u64{0} : seq_of(lost_.head); }
  void on_lost(SegmentList* order, u64 seq) noexcept;                         // the segment must be resent
  void on_resent(SegmentList* order, u64 seq, i64 now_ns, u8 path) noexcept;  // the segment was resent on `path`
  void on_refused(SegmentList* order, u64 seq) noexcept;                      // the segment was refused and is now held
  void on_room(u64 seq) noexcept;                                             // there is room: resend the held segment
  bool has_held() const noexcept { return !held_.empty(); }
  u64 first_held() const noexcept { return held_.empty() ? ~u64{0} : seq_of(held_.head); }
  u64 next_held(u64 seq) noexcept { return at(seq).next == kNone ? ~u64{0} : seq_of(at(seq).next); }
  // Marks a segment as acknowledged. `order`: the send order of its path. False if it was acknowledged before.
  bool on_acked(SegmentList* order, u64 seq) noexcept;
  // Removes the oldest segments up to the first that is not acknowledged, and returns their slabs to the pool.
  void advance() noexcept;

 private:
  Slab* slab_of(u64 seq) noexcept { return directory_[(seq / kSlabSegments) & directory_mask_]; }
  bool grow_directory() noexcept;
  void append_to(SegmentList* list, u64 seq) noexcept;
  void unlink(SegmentList* list, u64 seq) noexcept;

  SlabPool* slabs_;
  std::unique_ptr<Slab*[]> directory_;  // circular, with one entry per 32 sequence numbers
  u64 directory_mask_ = 0;
  u64 cumulative_ = 0;
  u64 next_ = 0;
  i64 inflight_bytes_ = 0;
  u64 unresolved_ = 0;
  SegmentList lost_;
  SegmentList held_;
};

}  // namespace weft::core
