// A circular buffer of messages that doubles when full. Positions only increase; a slot number is the low 16 bits of a
// position. A slot stays valid while any segment of its message is unacknowledged.
#include "native/core/send_queue.h"

#include <new>

namespace weft::core {

bool SendQueue::grow() noexcept {
  const u64 entries = ring_ == nullptr ? 4 : 2 * (mask_ + 1);
  if (entries > kMessagesMax) return false;
  std::unique_ptr<SendMessage[]> larger(new (std::nothrow) SendMessage[entries]);
  if (larger == nullptr) return false;
  for (u64 i = head_; i != tail_; ++i) larger[i & (entries - 1)] = ring_[i & mask_];
  ring_ = std::move(larger);
  mask_ = entries - 1;
  return true;
}

bool SendQueue::post(const SendMessage& message) noexcept {
  if (ring_ == nullptr || tail_ - head_ > mask_) {
    if (!grow()) return false;
  }
  SendMessage& entry = ring_[tail_++ & mask_];
  entry = message;
  entry.next_offset = message.stripe.begin;
  entry.unacked_bytes = message.stripe.bytes();
  entry.handed_out = entry.done = false;
  posted_end_ = message.number + 1;
  unsent_bytes_ += message.stripe.bytes();
  posted_bytes_ += message.stripe.bytes();
  return true;
}

void SendQueue::on_handed_out(u64 bytes) noexcept {
  SendMessage& message = next();
  message.next_offset += bytes;
  unsent_bytes_ -= bytes;
  if (message.next_offset == message.stripe.end) {
    message.handed_out = true;
    ++cursor_;
  }
}

bool SendQueue::on_acked(SendMessage& message, u64 bytes) noexcept {
  message.unacked_bytes -= bytes;
  // An empty stripe has a single segment without bytes; the message is complete when that segment is acknowledged.
  message.done = message.handed_out && message.unacked_bytes == 0;
  return message.done;
}

void SendQueue::advance() noexcept {
  while (head_ != cursor_ && ring_[head_ & mask_].done) ++head_;
}

}  // namespace weft::core
