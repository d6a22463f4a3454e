// Posted receives, and eager messages without a posted receive: decides where a segment's bytes go and when a message
// is complete. Guarantees P-1 and P-3 on the receiving side.
#pragma once

#include <atomic>
#include <memory>

#include "native/core/post.h"
#include "native/core/shared.h"
#include "native/core/stage.h"
#include "native/core/status.h"
#include "native/core/stripes.h"

namespace weft::core {

// One receive, shared by the flows of its connection, which may belong to different engines. The first segment on any
// flow sets the message's size for all of them, so a peer cannot state different sizes.
struct ReceiveTicket {
  std::atomic<u64> message{~u64{0}};
  std::atomic<i64> agreed_bytes{-1};
  std::atomic<u32> stripes_placed{0};
};

// Notes that one flow's part of a message is complete. True for the last part: the calling thread then completes the
// message.
inline bool on_stripe_placed(ReceiveTicket& ticket, u64 message_bytes, u32 stripes) noexcept {
  const u64 message = ticket.message.load(std::memory_order_relaxed);
  const u32 parts = part_count(message, message_bytes, stripes);
  return ticket.stripes_placed.fetch_add(1, std::memory_order_acq_rel) + 1 == parts;
}

class ReceiveQueue {
 public:
  static constexpr u64 kPostedMax = 1024;
  // no_block: the message has no posted receive and there is no eager block for it. no_room: the receive's bounce
  // buffer has no room. In both cases the segment is valid and its sender must wait until the receiver reports room.
  enum class Placement : u8 { placed, refused, too_long, no_block, no_room };

  ReceiveQueue(Shared* shared, EagerLimits eager, u8 stripe, u8 stripes) noexcept
      : shared_(shared), eager_(eager), stripe_(stripe), stripes_(stripes) {}
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  ~ReceiveQueue();

  const EagerLimits& eager() const noexcept { return eager_; }
  u64 posted() const noexcept { return posted_; }
  // Whether this is the home flow of an incomplete posted receive. The home flow takes part in messages of every size.
  bool pending() const noexcept { return count_ != finished_; }
  // Number of incomplete receives whose home flow this is.
  u64 outstanding() const noexcept { return count_ - finished_; }
  // Whether any posted receive may be incomplete. forget_elsewhere() removes the receives of which this flow turns out
  // to carry no stripe.
  bool awaits() const noexcept { return pending() || others_ != 0; }
  void forget_elsewhere() noexcept;
  u64 eager_held() const noexcept { return eager_held_; }
  // Frees the storage if no receive is incomplete and no eager message is held.
  void release() noexcept {
    if (!awaits() && eager_held_ == 0) ring_.reset();
  }
  // Whether a message that was refused for lack of an eager block still has neither a block nor a receive.
  bool wants_block() const noexcept { return blockless_end_ > posted_ + eager_held_; }
  // Whether the last posted receive is for a message that may have been refused for lack of an eager block.
  bool unblocked_by_post() const noexcept { return blockless_end_ >= posted_ && unheld_post_; }
  // Finds a receive whose bounce buffer has more room than the sender knows of. Sets its message and the end of the
  // room. False: there is none.
  bool take_room(u64* message, u64* end_bytes) noexcept;
  bool room_due() const noexcept { return room_due_; }
  void on_emptied() noexcept { room_due_ = starved_slots_ != 0; }
  // Calls what(message, bytes) for each incomplete posted receive that may have a stripe on this flow.
  template <typename What>
  void each_outstanding(const What& what) const noexcept {
    for (u64 i = 0; ring_ != nullptr && i <= mask_; ++i) {
      const Slot& slot = ring_[i];
      if (slot.state != Slot::posted || is_elsewhere(slot)) continue;
      what(slot.message, slot.message_bytes == ~u64{0} ? slot.capacity_bytes : slot.message_bytes);
    }
  }
  // Prefetch the slot of the message that probably arrives next, and then what it points to.
  void prefetch() const noexcept {
    if (ring_ != nullptr) core::prefetch(&ring_[finished_ & mask_], &ring_[finished_ & mask_] + 1);
  }
  void prefetch_ticket() const noexcept {
    if (ring_ != nullptr) __builtin_prefetch(ring_[finished_ & mask_].ticket);
  }
  // Number of complete eager messages without a posted receive.
  u64 held() const noexcept;

  // Posts the receive of a message, which is `posted()` or later; messages that are skipped cannot arrive over this
  // flow. If the message has arrived eagerly, the receive completes at once. would_block: the queue is full.
  // message_too_long: the eager message does not fit, and the connection must be failed. Segments beyond the room of a
  // bounce buffer are refused.
  Status post(u32 flow, const ReceivePost& receive) noexcept;

  // Checks whether a segment can be placed, and takes an eager block for it if needed. Only after the result `placed`
  // may write() and then place() be called.
  Placement check(u64 message, u64 offset_bytes, u64 payload_bytes, u64 message_bytes) noexcept;
  // Address of a segment that was written through the memory window of its receive; null: the receive has no window.
  const u8* written_at(u64 message, u64 offset_bytes, u64 payload_bytes) const noexcept;
  // The advertisement of a receive; empty if the message cannot arrive over this flow or is complete.
  wire::AdvertEntry advert_of(u64 message) const noexcept;
  // Copies the segment's bytes into the receive buffer unless they are there already. They count as received only after
  // place(), and may be overwritten until then.
  void write(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // Copies like write() and returns the CRC of the bytes, computed in the same pass.
  u32 write_checked(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // Counts the segment's bytes as received. True when this flow's stripe of the message is complete.
  bool place(u32 flow, u64 message, u64 offset_bytes, u64 payload_bytes) noexcept;

 private:
  struct Slot {
    enum State : u8 { idle, eager, posted, whole };
    u64 message = ~u64{0};
    union {
      u8* data = nullptr;  // the caller's buffer, or the eager block
      Stage* stage;        // if `staged`: the bounce buffer
    };
    u64 capacity_bytes = 0;
    u64 message_bytes = ~u64{0};  // ~0: no segment has stated the size yet
    u64 placed_bytes = 0;
    u64 told_end = 0;  // if `starved`: the sender knows of room up to this offset
    ReceiveTicket* ticket = nullptr;
    u32 key = 0;  // key of the memory window onto `data`; 0: none
    State state = idle;
    bool empty_arrived = false;  // the empty segment of an empty stripe has arrived
    bool staged = false;
    bool starved = false;        // a segment was refused for lack of room in the bounce buffer
    bool releases_late = false;  // the message was eager at first: Stage::release() is called once, when it is complete
  };
  bool is_home() const noexcept { return stripe_ == kHomeFlow; }
  bool is_elsewhere(const Slot& slot) const noexcept;
  void clear(Slot& slot, u64 message) noexcept;
  bool agree(Slot& slot, u64 message_bytes) noexcept;
  bool is_whole(const Slot& slot) const noexcept;
  void finish(u32 flow, Slot& slot) noexcept;
  void report(Event::Kind kind, u32 flow, const Slot& slot) const noexcept;
  bool ensure(u64 message) noexcept;
  Slot* eager_slot(u64 message) noexcept;
  bool reaches(Slot& slot, u64 end_bytes) noexcept;

  Shared* shared_;
  EagerLimits eager_;
  std::unique_ptr<Slot[]> ring_;
  u64 mask_ = 0;
  u64 count_ = 0, finished_ = 0;
  u64 eager_held_ = 0;     // number of eager blocks in use
  u64 blockless_end_ = 0;  // 1 + number of the newest message refused for lack of an eager block
  u64 starved_slots_ = 0;
  u64 others_ = 0;  // number of incomplete posted receives whose home flow is another one
  u64 posted_ = 0;  // 1 + number of the newest message with a posted receive
  u8 stripe_;
  u8 stripes_;
  bool unheld_post_ = false;
  bool room_due_ = false;
};

}  // namespace weft::core
