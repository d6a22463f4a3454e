// Records every segment in flight (bytes, path, send time), the send order of each path, and the segments to be resent.
#pragma once

#include <cstddef>
#include <memory>

#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::core {

struct SentSegment {
  enum State : u8 { in_flight, lost, acked, held };  // held: refused by the receiver for lack of room
  i64 sent_ns;
  u64 offset_bytes;    // within the message
  u32 previous, next;  // neighbours in the path's send order or one of the ledger's lists: low 32 bits of seq
  u16 message_slot;
  u16 payload_bytes;
  u8 path;  // of the last copy
  State state;
};
static_assert(sizeof(SentSegment) == 32);

// A doubly linked list through the segments' `previous` and `next`.
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
  u64 unsettled() const noexcept { return unsettled_; }  // segments that are neither acknowledged nor held
  bool holds(u64 seq) const noexcept { return seq >= cumulative_ && seq < next_; }

  // Makes room for the segment `next_seq()`; false when the sequence window or the memory is exhausted.
  bool reserve() noexcept;
  // Requires a successful reserve().
  u64 append(SegmentList* order, i64 now_ns, u8 path, u16 message_slot, u64 offset_bytes, u16 payload_bytes) noexcept;

  SentSegment& at(u64 seq) noexcept { return slab_of(seq)->segments[seq % kSlabSegments]; }
  u64 seq_of(u32 low) const noexcept { return expand32(cumulative_ + kWindowSegments / 2, low); }

  // Oldest segment waiting to be resent; ~0: none.
  u64 first_lost() const noexcept { return lost_.empty() ? ~u64{0} : seq_of(lost_.head); }
  void on_lost(SegmentList* order, u64 seq) noexcept;                         // in flight -> to be resent
  void on_resent(SegmentList* order, u64 seq, i64 now_ns, u8 path) noexcept;  // to be resent -> in flight on `path`
  void on_refused(SegmentList* order, u64 seq) noexcept;                      // in flight -> held
  void on_room(u64 seq) noexcept;                                             // held -> to be resent
  bool has_held() const noexcept { return !held_.empty(); }
  u64 first_held() const noexcept { return held_.empty() ? ~u64{0} : seq_of(held_.head); }
  u64 next_held(u64 seq) noexcept { return at(seq).next == kNone ? ~u64{0} : seq_of(at(seq).next); }
  // `order` is the list of the segment's path. False if it was acknowledged before.
  bool on_acked(SegmentList* order, u64 seq) noexcept;
  // Drops acknowledged segments from the front and returns their slabs.
  void advance() noexcept;

 private:
  Slab* slab_of(u64 seq) noexcept { return directory_[(seq / kSlabSegments) & directory_mask_]; }
  bool grow_directory() noexcept;
  void append_to(SegmentList* list, u64 seq) noexcept;
  void unlink(SegmentList* list, u64 seq) noexcept;

  SlabPool* slabs_;
  std::unique_ptr<Slab*[]> directory_;  // circular; one entry per slab of sequence numbers
  u64 directory_mask_ = 0;
  u64 cumulative_ = 0;
  u64 next_ = 0;
  i64 inflight_bytes_ = 0;
  u64 unsettled_ = 0;
  SegmentList lost_;
  SegmentList held_;
};

}  // namespace weft::core
