// Posted receives, and eager messages that arrived before theirs: where each segment's bytes go, and when a message is
// complete. Guarantees P-1 and P-3 on the receiving side.
#pragma once

#include <atomic>
#include <memory>

#include "native/core/shared.h"
#include "native/core/stage.h"
#include "native/core/status.h"
#include "native/core/stripes.h"

namespace weft::core {

// One receive, shared by the flows of its connection, which may belong to different engines. The first segment that
// arrives on any of them fixes the message's size for all, so a peer can't announce different sizes.
struct ReceiveTicket {
  std::atomic<u64> message{~u64{0}};
  std::atomic<i64> agreed_bytes{-1};
  std::atomic<u32> stripes_placed{0};
};

// True for the flow that placed the last stripe; that flow's thread completes the message.
inline bool on_stripe_placed(ReceiveTicket& ticket, u64 message_bytes, u32 stripes) noexcept {
  return ticket.stripes_placed.fetch_add(1, std::memory_order_acq_rel) + 1 == stripe_count(message_bytes, stripes);
}

class ReceiveQueue {
 public:
  static constexpr u64 kPostedMax = 1024;
  // no_block, no_room: the segment is valid, but there is no eager block for a message without a receive, or no room in
  // the receive's bounce buffer. The sender has to wait until it is told of room.
  enum class Placement : u8 { placed, refused, too_long, no_block, no_room };

  ReceiveQueue(Shared* shared, EagerLimits eager, u8 stripe, u8 stripes) noexcept
      : shared_(shared), eager_(eager), stripe_(stripe), stripes_(stripes) {}
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  ~ReceiveQueue();

  const EagerLimits& eager() const noexcept { return eager_; }
  u64 posted() const noexcept { return posted_; }
  // Whether a posted receive is incomplete whose first stripe this flow carries; each message has one such flow,
  // whatever its size.
  bool pending() const noexcept { return count_ != finished_; }
  u64 outstanding() const noexcept { return count_ - finished_; }  // number of those
  // Whether any posted receive may be incomplete on this flow, including those whose first stripe is on another flow.
  // Those may have no stripe here; forget_elsewhere() removes them.
  bool awaits() const noexcept { return pending() || others_ != 0; }
  void forget_elsewhere() noexcept;
  u64 eager_held() const noexcept { return eager_held_; }
  // Whether a message was refused for lack of a block and still has neither a block nor a receive.
  bool wants_block() const noexcept { return blockless_end_ > posted_ + eager_held_; }
  // Whether the most recent post gave a receive to a message that had been refused (a message up to the newest refused
  // one).
  bool unblocked_by_post() const noexcept { return blockless_end_ >= posted_ && unheld_post_; }
  // Finds a receive whose bounce buffer has more room than the sender knows: its message, and where the room ends.
  // False: there is none.
  bool take_room(u64* message, u64* end_bytes) noexcept;
  bool room_due() const noexcept { return room_due_; }
  void on_emptied() noexcept { room_due_ = starved_slots_ != 0; }
  // Visits posted receives that may still have had bytes to come over this flow.
  template <typename What>
  void each_outstanding(const What& what) const noexcept {
    for (u64 i = 0; ring_ != nullptr && i <= mask_; ++i) {
      const Slot& slot = ring_[i];
      if (slot.state != Slot::posted || is_elsewhere(slot)) continue;
      what(slot.message, slot.message_bytes == ~u64{0} ? slot.capacity_bytes : slot.message_bytes);
    }
  }
  // Number of complete eager messages without a receive.
  u64 held() const noexcept;

  // Posts the receive for `message`, which is `posted()` or later; numbers that are skipped can't arrive over this
  // flow. An eager message that is complete already finishes at once. would_block: the queue is full; message_too_long:
  // the held message does not fit (the connection must be failed). `key`: of the memory window onto the buffer, or 0.
  // `stage`: bounce buffer that takes the bytes instead of `data`, or null; such a receive has no window, and segments
  // beyond its room are refused.
  Status post(u32 flow, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
              Stage* stage = nullptr) noexcept;

  // Checks whether a segment can be placed; the only side effect is to set up an eager slot. If the result is `placed`,
  // write() and then place() may follow.
  Placement check(u64 message, u64 offset_bytes, u64 payload_bytes, u64 message_bytes) noexcept;
  // Address of a segment that was written through its receive's window; null: the receive has none.
  const u8* written_at(u64 message, u64 offset_bytes, u64 payload_bytes) const noexcept;
  // The advertisement of a receive; empty if the message can't arrive over this flow or is complete.
  wire::AdvertEntry advert_of(u64 message) const noexcept;
  // Copies the segment's bytes to their place unless they are there already. They don't count before place(), and may
  // be overwritten until then.
  void write(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // As write(), in one pass with the CRC of the bytes, which it returns.
  u32 write_checked(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // Counts the segment's bytes as received. True when this flow's part of the message is complete.
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
    u64 message_bytes = ~u64{0};  // ~0: not known yet
    u64 placed_bytes = 0;
    u64 told_end = 0;  // if `starved`: end of the room that the sender knows of
    ReceiveTicket* ticket = nullptr;
    u32 key = 0;  // of the memory window onto `data`
    State state = idle;
    bool empty_arrived = false;  // the segment of a zero-byte message has arrived
    bool staged = false;
    bool starved = false;       // a segment was refused for lack of room in the bounce buffer
    bool settles_late = false;  // was eager before: all its bytes are reported to the stage at the end
  };
  bool in_turn(u64 message) const noexcept { return message % stripes_ == stripe_; }
  bool is_elsewhere(const Slot& slot) const noexcept;
  void clear(Slot& slot, u64 message) noexcept;
  bool settle(Slot& slot, u64 message_bytes) noexcept;
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
  u64 eager_held_ = 0;     // number of eager blocks held
  u64 blockless_end_ = 0;  // 1 + newest message refused for lack of a block
  u64 starved_slots_ = 0;
  u64 others_ = 0;  // posted and incomplete, with the first stripe on another flow
  u64 posted_ = 0;  // 1 + number of the newest message with a posted receive
  u8 stripe_;
  u8 stripes_;
  bool unheld_post_ = false;
  bool room_due_ = false;
};

}  // namespace weft::core
