// The queue of posted sends of a flow, in order: which bytes are sent next, and which messages are completely
// acknowledged.
#pragma once

#include <memory>

#include "native/core/stage.h"
#include "native/core/stripes.h"
#include "native/core/types.h"

namespace weft::core {

struct SendMessage {
  u64 number = 0;  // number of the message within the connection
  union {
    const u8* data = nullptr;
    Stage* stage;  // if `staged`: the bounce buffer that supplies the bytes
  };
  u64 message_bytes = 0;
  Range stripe;         // the bytes of the message that this flow carries
  u64 next_offset = 0;  // offset of the first byte that was not sent yet
  u64 unacked_bytes = 0;
  void* cookie = nullptr;
  u64 remote_address = 0;  // address of the receive's memory window; unused if remote_key is 0
  u64 room_end = ~u64{0};  // bytes from this offset on wait for room in the receiver's bounce buffer
  u32 remote_key = 0;
  u32 memory = 0;           // id of the memory registration that contains `data`; 0: none
  bool handed_out = false;  // every segment was sent; a zero-byte message has one empty segment
  bool done = false;
  bool staged = false;
  bool blockless = false;  // waits for an eager block at the receiver, because no receive was advertised for it

  // Address of the byte at `offset_bytes`. In a bounce buffer the following bytes are contiguous only up to its end.
  const u8* at(u64 offset_bytes) const noexcept { return staged ? stage->at(offset_bytes) : data + offset_bytes; }
  // Payload size of the next segment; zero only for an empty stripe.
  u64 next_bytes(u64 segment_payload_bytes) const noexcept {
    const u64 left = std::min(stripe.end - next_offset, segment_payload_bytes);
    return staged ? std::min(left, stage->together(next_offset)) : left;
  }
  bool is_there(u64 bytes) const noexcept { return !staged || stage->reaches(next_offset + bytes); }
};

class SendQueue {
 public:
  static constexpr u64 kMessagesMax = 1024;  // limit of messages in the queue; slot numbers have 16 bits

  bool post(const SendMessage& message) noexcept;  // false: the queue is full, or memory ran out
  bool empty() const noexcept { return head_ == tail_; }
  bool has_unsent() const noexcept { return cursor_ != tail_; }
  u64 outstanding() const noexcept { return tail_ - head_; }  // number of messages
  u64 unsent_bytes() const noexcept { return unsent_bytes_; }
  u64 posted_bytes() const noexcept { return posted_bytes_; }

  void prefetch() const noexcept {
    if (ring_ != nullptr) core::prefetch(&ring_[head_ & mask_], &ring_[head_ & mask_] + 1);
  }
  // The message whose bytes are sent next. has_unsent() must be true.
  SendMessage& next() noexcept { return ring_[cursor_ & mask_]; }
  u16 next_slot() const noexcept { return static_cast<u16>(cursor_); }
  // Number of the next unsent message; if none is queued, a lower bound of that number.
  u64 next_number() const noexcept { return cursor_ != tail_ ? ring_[cursor_ & mask_].number : posted_end_; }
  void on_handed_out(u64 bytes) noexcept;  // `bytes` of next() were sent

  SendMessage& at(u16 slot) noexcept {
    return ring_[(head_ + static_cast<u16>(slot - static_cast<u16>(head_))) & mask_];
  }
  // Counts acknowledged bytes of a message. True when all bytes are acknowledged: its completion must be reported.
  bool on_acked(SendMessage& message, u64 bytes) noexcept;
  // Calls `what` for the messages that were started and for the next one to start, oldest first, until it returns
  // false.
  template <typename What>
  void each_begun(const What& what) noexcept {
    for (u64 i = head_; i != tail_ && i <= cursor_ && what(ring_[i & mask_]); ++i) {
    }
  }
  // Calls what(number, bytes) for each message that is not completely acknowledged.
  template <typename What>
  void each_outstanding(const What& what) const noexcept {
    for (u64 i = head_; i != tail_; ++i) {
      const SendMessage& message = ring_[i & mask_];
      if (!message.done) what(message.number, message.message_bytes);
    }
  }
  // The oldest message that is not completely acknowledged; null: there is none.
  const SendMessage* oldest() const noexcept {
    return empty() || ring_[head_ & mask_].done ? nullptr : &ring_[head_ & mask_];
  }
  // Removes the oldest messages up to the first that is not completely acknowledged.
  void advance() noexcept;
  // Frees the storage if the queue is empty.
  void release() noexcept {
    if (empty()) ring_.reset();
  }

 private:
  bool grow() noexcept;

  std::unique_ptr<SendMessage[]> ring_;
  u64 mask_ = 0;
  u64 head_ = 0, cursor_ = 0, tail_ = 0;
  u64 posted_end_ = 0;  // 1 + number of the last posted message
  u64 unsent_bytes_ = 0;
  u64 posted_bytes_ = 0;
};

}  // namespace weft::core
