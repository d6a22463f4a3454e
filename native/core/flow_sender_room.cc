// Handles segments that the receiver refused for lack of memory. They wait for news of room and count neither as lost
// nor as in flight. As the news may be lost, one segment is resent from time to time, like a TCP zero-window probe (RFC
// 9293, 3.8.6.1).
#include <algorithm>

#include "native/core/flow_sender.h"

namespace weft::core {

bool FlowSender::in_flight_as(const wire::NackEntry& entry) noexcept {
  if (!ledger_.holds(entry.seq)) return false;
  const SentSegment& segment = ledger_.at(entry.seq);
  return segment.state == SentSegment::in_flight && segment.sent_ns == entry.sent_ns;
}

// Holds a segment that the receiver refused. The path works, as it carried the segment. The segment has used its
// credit; resending it needs new credit.
void FlowSender::on_no_room(i64 now_ns, const wire::NackEntry& entry, bool for_a_block) noexcept {
  const SentSegment& segment = ledger_.at(entry.seq);
  const u8 path = segment.path;
  FlowPath& state = flow_path(path);
  --state.inflight_segments;
  paths_->on_gone(path, segment.payload_bytes);
  lost_bytes_ += segment.payload_bytes;
  ledger_.on_refused(&state.order, entry.seq);
  if (state.order.empty()) active_paths_[path / 64] &= ~(u64{1} << (path % 64));
  ++counters_->segments_held;
  paths_->on_heard(now_ns, path);
  note_check(path);
  SendMessage& message = queue_.at(segment.message_slot);
  if (message.number == tried_message_) tried_message_ = ~u64{0};
  if (!for_a_block) {
    message.room_end = std::min(message.room_end, segment.offset_bytes);
  } else if (message.number >= adverts_.known()) {
    message.blockless = blockless_ = true;
  }
  release_held();  // resends the segment if an advertisement has given its message room meanwhile
  wait_for_room(now_ns);
}

void FlowSender::wait_for_room(i64 now_ns) noexcept {
  if (room_ns_ != kNever) return;
  if (room_interval_ns_ == 0) room_interval_ns_ = 20 * shared_->config.rto_ns_min;
  room_ns_ = now_ns + std::min(room_interval_ns_, shared_->config.rto_ns_max);
}

// Releases `count` messages that wait for eager blocks. Messages whose receive is known by now need no block and are
// released too.
void FlowSender::open_messages(u64 count) noexcept {
  bool waits = false;
  queue_.each_begun([&](SendMessage& message) {
    if (!message.blockless) return true;
    if (message.number < adverts_.known()) {
      message.blockless = false;
    } else if (count != 0) {
      message.blockless = false;
      --count;
    }
    waits = waits || message.blockless;
    return true;
  });
  // Only started messages are examined. Those not started may now be sent; the receiver refuses them again if it has no
  // block.
  blockless_ = waits;
  room_interval_ns_ = 0;
  release_held();
}

void FlowSender::open_stage(u32 number, u64 end_bytes) noexcept {
  queue_.each_begun([&](SendMessage& message) {
    if (static_cast<u32>(message.number) != number) return true;
    if (message.room_end != ~u64{0}) message.room_end = std::max(message.room_end, end_bytes);
    return false;
  });
  room_interval_ns_ = 0;
  release_held();
}

void FlowSender::release_held() noexcept {
  for (u64 seq = ledger_.first_held(), next; seq != ~u64{0}; seq = next) {
    next = ledger_.next_held(seq);
    const SentSegment& segment = ledger_.at(seq);
    if (has_room(queue_.at(segment.message_slot), segment.offset_bytes + segment.payload_bytes)) ledger_.on_room(seq);
  }
}

void FlowSender::try_for_room(i64 now_ns) noexcept {
  room_ns_ = kNever;
  SendMessage* message = nullptr;
  u64 end_bytes = 0;
  if (ledger_.has_held()) {
    const SentSegment& segment = ledger_.at(ledger_.first_held());
    message = &queue_.at(segment.message_slot);
    end_bytes = segment.offset_bytes + segment.payload_bytes;
  } else if (roomless_ && queue_.has_unsent()) {
    message = &queue_.next();
    end_bytes = message->next_offset + message->next_bytes(segment_payload_bytes());
  }
  if (message == nullptr) {
    room_interval_ns_ = 0;
    return;
  }
  tried_message_ = message->number;
  message->blockless = false;
  if (message->room_end < end_bytes) message->room_end = end_bytes;
  // blockless_ keeps new messages from starting before earlier ones that wait for eager blocks. Now no segment of an
  // earlier message is held.
  if (!ledger_.has_held()) blockless_ = false;
  release_held();
  const i64 most_ns = shared_->config.rto_ns_max;
  room_interval_ns_ = std::min(std::max(2 * room_interval_ns_, 20 * shared_->config.rto_ns_min), most_ns);
  room_ns_ = now_ns + room_interval_ns_;
}

// The receiver accepted the segment that was sent as a probe. All waiting messages are released; the receiver again
// refuses those for which it has no room.
void FlowSender::on_tried(SendMessage& message, u64 end_bytes) noexcept {
  tried_message_ = ~u64{0};
  if (message.room_end != ~u64{0}) message.room_end = std::max(message.room_end, end_bytes);
  if (blockless_) open_messages(~u64{0});
}

}  // namespace weft::core
