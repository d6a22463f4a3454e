// The receives a caller posted, and eager messages that came before theirs: where a segment's bytes go, and when a
// message is whole. Holds P-1 and P-3 on the receiving side.
#pragma once

#include <atomic>
#include <memory>

#include "native/core/shared.h"
#include "native/core/stage.h"
#include "native/core/status.h"
#include "native/core/stripes.h"

namespace weft::core {

// One receive, shared by the flows of its connection (which may belong to different engines).
// The first segment to arrive on any of them settles the message's size for all: a peer cannot tell each another.
struct ReceiveTicket {
  std::atomic<u64> message{~u64{0}};
  std::atomic<i64> agreed_bytes{-1};
  std::atomic<u32> stripes_placed{0};
};

// The flow that placed the last stripe completes the message, whichever thread it runs on.
inline bool on_stripe_placed(ReceiveTicket& ticket, u64 message_bytes, u32 stripes) noexcept {
  return ticket.stripes_placed.fetch_add(1, std::memory_order_acq_rel) + 1 == stripe_count(message_bytes, stripes);
}

class ReceiveQueue {
 public:
  static constexpr u64 kPostedMax = 1024;
  // no_block, no_room: well-formed and in time, but there is no block for a message that comes before its receive, or
  // no room in its ring: the sender is to wait until it is told of some.
  enum class Placement : u8 { placed, refused, too_long, no_block, no_room };

  ReceiveQueue(Shared* shared, EagerLimits eager, u8 stripe, u8 stripes) noexcept
      : shared_(shared), eager_(eager), stripe_(stripe), stripes_(stripes) {}
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  ~ReceiveQueue();

  const EagerLimits& eager() const noexcept { return eager_; }
  u64 posted() const noexcept { return posted_; }
  // Whether a message waits whose first stripe this flow carries: each message has one such flow, whatever its size.
  bool pending() const noexcept { return count_ != finished_; }
  // Whether anything may still come, stripes of messages that begin on other flows included. Those may prove short:
  // forget_elsewhere() looks.
  bool awaits() const noexcept { return pending() || others_ != 0; }
  void forget_elsewhere() noexcept;
  u64 eager_held() const noexcept { return eager_held_; }
  // Whether a message was refused for want of a block, and neither has one now nor a receive.
  bool wants_block() const noexcept { return blockless_end_ > posted_ + eager_held_; }
  // Of the receive posted last: whether its message had been refused, as far as is known.
  bool unblocked_by_post() const noexcept { return blockless_end_ >= posted_ && unheld_post_; }
  // More of a ring has been emptied, or the sender has not heard how far: a message to tell it of, and where its room
  // ends. False: none.
  bool take_room(u64* message, u64* end_bytes) noexcept;
  bool room_due() const noexcept { return room_due_; }
  void on_emptied() noexcept { room_due_ = starved_slots_ != 0; }
  // Whole eager messages that wait for their receives.
  u64 held() const noexcept;

  // Posts the receive for `message`, which is `posted()` or later: those between cannot come over this flow. An eager
  // message that was there already completes at once.
  // would_block: full; message_too_long: the waiting message does not fit (the connection is to be failed).
  // `key`: of a window onto the buffer that the peer may write through, or 0. `stage`: through which its bytes go,
  // instead of to `data`, or null; such a receive has no window. What comes before there is room for it is refused.
  Status post(u32 flow, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
              Stage* stage = nullptr) noexcept;

  // Where the segment would go; changes nothing but what an eager slot needs. When placed, write() may follow, and then
  // place().
  Placement check(u64 message, u64 offset_bytes, u64 payload_bytes, u64 message_bytes) noexcept;
  // Where a segment lies that was written through its receive's window; null: it has none.
  const u8* written_at(u64 message, u64 offset_bytes, u64 payload_bytes) const noexcept;
  // What the sender is to be told of a receive; nothing of one that cannot come over this flow, or has come.
  wire::AdvertEntry advert_of(u64 message) const noexcept;
  // Copies the segment's bytes to where they belong, unless they lie there already. They count for nothing before
  // place(): what is written there in its stead takes their place.
  void write(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // The same in one pass with the CRC of the bytes, which it returns.
  u32 write_checked(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept;
  // The segment's bytes are there. True when this flow's part of the message is whole now.
  bool place(u32 flow, u64 message, u64 offset_bytes, u64 payload_bytes) noexcept;

 private:
  struct Slot {
    enum State : u8 { idle, eager, posted, whole };
    u64 message = ~u64{0};
    union {
      u8* data = nullptr;  // the caller's buffer, or the eager block
      Stage* stage;        // where `staged`: through which its bytes go
    };
    u64 capacity_bytes = 0;
    u64 message_bytes = ~u64{0};  // ~0: not known yet
    u64 placed_bytes = 0;
    u64 told_end = 0;  // where `starved`: how far the sender has been told that there is room
    ReceiveTicket* ticket = nullptr;
    u32 key = 0;  // of the window onto `data`
    State state = idle;
    bool empty_arrived = false;  // the segment of a zero-byte message
    bool staged = false;
    bool starved = false;       // a segment found no room in the ring
    bool settles_late = false;  // which bytes came before the stage did is not known: all are counted in the end
  };
  bool in_turn(u64 message) const noexcept { return message % stripes_ == stripe_; }
  bool is_elsewhere(const Slot& slot) const noexcept;
  void clear(Slot& slot, u64 message) noexcept;
  bool settle(Slot& slot, u64 message_bytes) noexcept;
  bool is_whole(const Slot& slot) const noexcept;
  void finish(u32 flow, Slot& slot) noexcept;
  bool ensure(u64 message) noexcept;
  Slot* eager_slot(u64 message) noexcept;
  bool reaches(Slot& slot, u64 end_bytes) noexcept;

  Shared* shared_;
  EagerLimits eager_;
  std::unique_ptr<Slot[]> ring_;
  u64 mask_ = 0;
  u64 count_ = 0, finished_ = 0;
  u64 eager_held_ = 0;     // blocks
  u64 blockless_end_ = 0;  // 1 + newest message that was refused for want of one
  u64 starved_slots_ = 0;
  u64 others_ = 0;  // posted, not whole, and begun on another flow
  u64 posted_ = 0;  // 1 + number of the newest message with a posted receive
  u8 stripe_;
  u8 stripes_;
  bool unheld_post_ = false;
  bool room_due_ = false;
};

}  // namespace weft::core
