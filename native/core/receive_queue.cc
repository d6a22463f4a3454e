// Places received segments. Each message has a slot that is eager (its bytes are in an eager block), posted (they are
// in the caller's buffer) or whole (complete). check() makes all checks that protect buffers.
#include "native/core/receive_queue.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "native/wire/crc32c.h"

namespace weft::core {

ReceiveQueue::~ReceiveQueue() {
  if (ring_ == nullptr) return;
  for (u64 i = 0; i <= mask_; ++i) {
    if (ring_[i].state == Slot::eager) shared_->eager_blocks.give(ring_[i].data);
  }
}

// Whether this flow has nothing to do with a posted receive: its ticket is used for another message by now, or the
// message is too short to have a stripe on this flow.
bool ReceiveQueue::is_elsewhere(const Slot& slot) const noexcept {
  if (slot.state != Slot::posted) return false;
  if (slot.ticket->message.load(std::memory_order_acquire) != slot.message) return true;
  const i64 agreed_bytes = slot.ticket->agreed_bytes.load(std::memory_order_acquire);
  return agreed_bytes >= 0 && slot.message_bytes == ~u64{0} &&
         !takes_part(slot.message, static_cast<u64>(agreed_bytes), stripe_, stripes_);
}

void ReceiveQueue::clear(Slot& slot, u64 message) noexcept {
  if (slot.state == Slot::posted && !is_home()) --others_;
  if (slot.state == Slot::posted && slot.key != 0) {
    Event event{};
    event.kind = Event::Kind::window_unused;
    event.key = slot.key;
    shared_->report(event);
  }
  if (slot.starved) --starved_slots_;
  slot = Slot{};
  slot.message = message;
}

void ReceiveQueue::forget_elsewhere() noexcept {
  for (u64 i = 0; ring_ != nullptr && others_ != 0 && i <= mask_; ++i) {
    if (is_elsewhere(ring_[i])) clear(ring_[i], ~u64{0});
  }
}

// Grows the ring until no other incomplete message uses the slot of `message`. False: the ring is full or memory ran
// out.
bool ReceiveQueue::ensure(u64 message) noexcept {
  for (;;) {
    if (ring_ != nullptr) {
      const Slot& slot = ring_[message & mask_];
      const bool free = slot.state == Slot::idle || slot.state == Slot::whole || is_elsewhere(slot);
      if (slot.message == message || free) return true;
    }
    const u64 entries = ring_ == nullptr ? 4 : 2 * (mask_ + 1);
    if (entries > kPostedMax) return false;
    std::unique_ptr<Slot[]> larger(new (std::nothrow) Slot[entries]);
    if (larger == nullptr) return false;
    if (ring_ != nullptr) {
      for (u64 i = 0; i <= mask_; ++i) {
        if (ring_[i].message != ~u64{0}) larger[ring_[i].message & (entries - 1)] = ring_[i];
      }
    }
    ring_ = std::move(larger);
    mask_ = entries - 1;
  }
}

Status ReceiveQueue::post(u32 flow, const ReceivePost& receive) noexcept {
  const u64 message = receive.message;
  if (message < posted_) return Status::invalid_argument;
  if (!ensure(message)) return Status::would_block;
  Slot& slot = ring_[message & mask_];
  if (slot.message == message && slot.state == Slot::eager) {
    if (slot.message_bytes > receive.capacity_bytes) return Status::message_too_long;
    // Another flow may already have received a segment of this message: both must state the same message size before
    // bytes are copied.
    i64 agreed = -1;
    const auto bytes = static_cast<i64>(slot.message_bytes);
    if (!receive.ticket->agreed_bytes.compare_exchange_strong(agreed, bytes) && agreed != bytes) {
      return Status::message_too_long;
    }
    u8* block = slot.data;
    if (receive.stage != nullptr) receive.stage->set_size(0, slot.message_bytes);
    if (shared_->config.place_payload && slot.message_bytes != 0) {
      // Copies the whole block. Where segments are still missing, they overwrite the copied bytes later.
      std::memcpy(receive.stage != nullptr ? receive.stage->ring : receive.data, block, slot.message_bytes);
    }
    slot.releases_late = receive.stage != nullptr;
    unheld_post_ = false;
    --eager_held_;
    shared_->eager_blocks.give(block);
  } else {
    clear(slot, message);
    unheld_post_ = true;
  }
  slot.staged = receive.stage != nullptr;
  if (slot.staged) {
    slot.stage = receive.stage;
  } else {
    slot.data = receive.data;
  }
  slot.capacity_bytes = receive.capacity_bytes;
  slot.ticket = receive.ticket;
  slot.key = receive.key;
  slot.state = Slot::posted;
  posted_ = message + 1;
  (is_home() ? count_ : others_) += 1;
  report(Event::Kind::message_posted, flow, slot);
  if (is_whole(slot)) finish(flow, slot);
  return Status::ok;
}

const u8* ReceiveQueue::written_at(u64 message, u64 offset_bytes, u64 payload_bytes) const noexcept {
  if (ring_ == nullptr) return nullptr;
  const Slot& slot = ring_[message & mask_];
  const bool open = slot.message == message && slot.state == Slot::posted && slot.key != 0;
  const bool inside = payload_bytes <= slot.capacity_bytes && offset_bytes <= slot.capacity_bytes - payload_bytes;
  return open && inside ? slot.data + offset_bytes : nullptr;
}

wire::AdvertEntry ReceiveQueue::advert_of(u64 message) const noexcept {
  wire::AdvertEntry entry;
  if (ring_ == nullptr) return entry;
  const Slot& slot = ring_[message & mask_];
  if (slot.message != message || slot.state != Slot::posted) return entry;
  entry.capacity_bytes = slot.capacity_bytes;
  if (slot.key != 0) entry.address = reinterpret_cast<std::uintptr_t>(slot.data);
  entry.key = slot.key;
  return entry;
}

u64 ReceiveQueue::held() const noexcept {
  u64 held = 0;
  for (u64 i = 0; ring_ != nullptr && i <= mask_; ++i)
    held += ring_[i].state == Slot::eager && is_whole(ring_[i]) ? 1 : 0;
  return held;
}

ReceiveQueue::Slot* ReceiveQueue::eager_slot(u64 message) noexcept {
  if (!ensure(message)) return nullptr;
  Slot& slot = ring_[message & mask_];
  if (slot.message == message && slot.state == Slot::eager) return &slot;
  if (!shared_->may_hold_eager(eager_held_)) return nullptr;
  void* block = shared_->eager_blocks.take();
  if (block == nullptr) return nullptr;
  clear(slot, message);
  slot.data = static_cast<u8*>(block);
  slot.capacity_bytes = eager_.bytes;
  slot.state = Slot::eager;
  ++eager_held_;
  return &slot;
}

// Whether the bounce buffer has room up to `end_bytes`. A segment beyond the room that was reported to the sender is
// the sender's probe for room: the report may have been lost, so the room is reported again.
bool ReceiveQueue::reaches(Slot& slot, u64 end_bytes) noexcept {
  if (!slot.staged) return true;
  if (slot.starved && end_bytes > slot.told_end) {
    slot.told_end = 0;
    room_due_ = true;
  }
  if (slot.stage->reaches(end_bytes)) return true;
  if (!slot.starved) {
    slot.starved = true;
    ++starved_slots_;
    slot.told_end = slot.stage->begin + slot.stage->limit.load(std::memory_order_acquire);
    // Makes take_room() check again: the copier may have made room since Stage::reaches() was called above, and it
    // reports that room only once.
    room_due_ = true;
  }
  return false;
}

bool ReceiveQueue::take_room(u64* message, u64* end_bytes) noexcept {
  room_due_ = false;
  for (u64 i = 0; ring_ != nullptr && starved_slots_ != 0 && i <= mask_; ++i) {
    Slot& slot = ring_[i];
    if (!slot.starved || slot.state != Slot::posted) continue;
    const u64 end = slot.stage->begin + slot.stage->limit.load(std::memory_order_acquire);
    if (end <= slot.told_end) continue;
    slot.told_end = end;
    *message = slot.message;
    *end_bytes = end;
    return room_due_ = true;  // check again: other receives may also have gained room in their bounce buffers
  }
  return false;
}

// Sets the message's size at its first segment. False if a segment of this or another flow has stated a different size.
bool ReceiveQueue::agree(Slot& slot, u64 message_bytes) noexcept {
  if (slot.message_bytes != ~u64{0}) return slot.message_bytes == message_bytes;
  if (slot.state == Slot::posted) {
    if (slot.ticket->message.load(std::memory_order_acquire) != slot.message) return false;
    i64 agreed = -1;
    const auto wanted = static_cast<i64>(message_bytes);
    if (!slot.ticket->agreed_bytes.compare_exchange_strong(agreed, wanted) && agreed != wanted) return false;
  }
  slot.message_bytes = message_bytes;
  if (slot.staged) {
    const Range stripe = stripe_of(slot.message, message_bytes, stripe_, stripes_);
    slot.stage->set_size(stripe.begin, stripe.bytes());
  }
  return true;
}

ReceiveQueue::Placement ReceiveQueue::check(u64 message, u64 offset_bytes, u64 payload_bytes,
                                            u64 message_bytes) noexcept {
  if (message_bytes > kMessageBytesMax) return Placement::refused;
  const Range stripe = stripe_of(message, message_bytes, stripe_, stripes_);
  if (!takes_part(message, message_bytes, stripe_, stripes_)) return Placement::refused;
  if (offset_bytes < stripe.begin || payload_bytes > stripe.end - offset_bytes || offset_bytes > stripe.end) {
    return Placement::refused;
  }
  if (payload_bytes == 0 && stripe.bytes() != 0) return Placement::refused;
  Slot* slot = nullptr;
  if (message >= posted_) {
    if (message - posted_ >= eager_.slots || message_bytes > eager_.bytes) return Placement::refused;
    slot = eager_slot(message);
    if (slot == nullptr) {
      blockless_end_ = std::max(blockless_end_, message + 1);
      return Placement::no_block;
    }
  } else {
    if (ring_ == nullptr) return Placement::refused;
    slot = &ring_[message & mask_];
    if (slot->message != message || slot->state != Slot::posted) return Placement::refused;
    if (message_bytes > slot->capacity_bytes) return Placement::too_long;
  }
  if (!agree(*slot, message_bytes)) return Placement::refused;
  return reaches(*slot, offset_bytes + payload_bytes) ? Placement::placed : Placement::no_room;
}

void ReceiveQueue::write(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept {
  if (!shared_->config.place_payload || payload_bytes == 0) return;
  const Slot& slot = ring_[message & mask_];
  if (slot.staged) {
    slot.stage->write(offset_bytes, payload, payload_bytes);
  } else if (u8* const to = slot.data + offset_bytes; payload != to) {
    std::memcpy(to, payload, payload_bytes);
  }
}

u32 ReceiveQueue::write_checked(u64 message, u64 offset_bytes, const u8* payload, u64 payload_bytes) noexcept {
  const Slot& slot = ring_[message & mask_];
  const bool lies_there = !slot.staged && payload == slot.data + offset_bytes;
  if (!shared_->config.place_payload || payload_bytes == 0 || lies_there) {
    return wire::crc32c(0, payload, payload_bytes);
  }
  if (!slot.staged) return wire::crc32c_copy(0, slot.data + offset_bytes, payload, payload_bytes);
  const Stage& stage = *slot.stage;
  const u64 first = std::min(payload_bytes, stage.together(offset_bytes));
  const u32 crc = wire::crc32c_copy(0, stage.at(offset_bytes), payload, first);
  return wire::crc32c_copy(crc, stage.ring, payload + first, payload_bytes - first);
}

void ReceiveQueue::report(Event::Kind kind, u32 flow, const Slot& slot) const noexcept {
  if (!shared_->trace.wants(kind)) return;
  Event event{};
  event.kind = kind;
  event.flow = flow;
  event.message = slot.message;
  event.value = slot.message_bytes == ~u64{0} ? slot.capacity_bytes : slot.message_bytes;
  event.receives = true;
  shared_->trace.emit(event);
}

bool ReceiveQueue::place(u32 flow, u64 message, u64 offset_bytes, u64 payload_bytes) noexcept {
  Slot& slot = ring_[message & mask_];
  if (slot.placed_bytes == 0 && !slot.empty_arrived) report(Event::Kind::message_started, flow, slot);
  if (slot.staged && !slot.releases_late) slot.stage->release(offset_bytes, payload_bytes);
  slot.placed_bytes += payload_bytes;
  if (payload_bytes == 0) slot.empty_arrived = true;
  if (!is_whole(slot)) return false;
  if (slot.state == Slot::posted) finish(flow, slot);
  return true;
}

bool ReceiveQueue::is_whole(const Slot& slot) const noexcept {
  if (slot.message_bytes == ~u64{0}) return false;
  const u64 bytes = stripe_of(slot.message, slot.message_bytes, stripe_, stripes_).bytes();
  return bytes == 0 ? slot.empty_arrived : slot.placed_bytes == bytes;
}

void ReceiveQueue::finish(u32 flow, Slot& slot) noexcept {
  if (is_home()) {
    ++finished_;
  } else {
    --others_;
  }
  slot.state = Slot::whole;
  if (slot.releases_late) slot.stage->release(0, slot.message_bytes);
  slot.releases_late = false;
  slot.data = nullptr;  // from now on the buffer belongs to the caller again
  slot.staged = false;
  if (slot.starved) --starved_slots_;
  slot.starved = false;
  Event event{};
  event.kind = Event::Kind::stripe_placed;
  event.flow = flow;
  event.cookie = slot.ticket;
  event.value = slot.message_bytes;
  event.key = slot.key;
  event.message = slot.message;
  event.receives = true;
  shared_->report(event);
}

}  // namespace weft::core
