// Messages match receives in order, so the sends of a group are posted in the order of its buffers, and those of the
// next group after them. NCCL's InfiniBand transport, too, holds the sends of a group until all have come.
#include "native/plugin/send_groups.h"

#include <algorithm>
#include <climits>

namespace weft::nccl {

Status SendGroups::add(unsigned slot, int tag, const Send& send) {
  const std::lock_guard lock(mutex_);
  if (const Status status = advance(); status != Status::ok) return status;
  for (std::size_t i = 0; i < static_cast<std::size_t>(head_.tags.count); ++i) {
    if (head_.tags.tags[i] != tag || head_.slots[i] != kNoSlot) continue;
    const bool its_turn = i == static_cast<std::size_t>(head_.posted);
    head_.slots[i] = slot;
    sends_[slot] = {send, nullptr, true};
    // A failure to post is reported by test(), because the slot is taken.
    if (advance() != Status::ok || sends_[slot].request != nullptr || !its_turn) return Status::ok;
    head_.slots[i] = kNoSlot;  // there is no room now
    sends_[slot] = {};
    return Status::would_block;
  }
  if (const Status health = connection_->health(); health != Status::ok) return health;
  return Status::would_block;
}

Status SendGroups::advance() {
  while (failure_ == Status::ok) {
    Status status = post_head();
    if (status == Status::ok && head_.posted == head_.tags.count) status = read_tags();
    if (status == Status::would_block) return Status::ok;
    if (status != Status::ok) failure_ = status;
    if (head_.posted < head_.tags.count && head_.slots[static_cast<std::size_t>(head_.posted)] == kNoSlot) break;
  }
  return failure_;
}

Status SendGroups::post_head() {
  while (head_.posted < head_.tags.count) {
    const unsigned slot = head_.slots[static_cast<std::size_t>(head_.posted)];
    if (slot == kNoSlot) return Status::ok;
    Posted& posted = sends_[slot];
    const Send& send = posted.send;
    const Status status = connection_->post_send(send.data, send.bytes, send.memory, &posted.request, send.channel);
    if (status != Status::ok) return status;
    ++head_.posted;
  }
  return Status::ok;
}

Status SendGroups::read_tags() {
  if (const Status status = post_tag_receives(); status != Status::ok) return status;
  if (groups_read_ == receives_posted_) return Status::would_block;
  const std::size_t at = groups_read_ % kGroupsMax;
  engine::Request* const request = tag_receives_[at];
  if (!request->done()) connection_->progress(*request);
  if (!request->done()) return Status::would_block;
  const Status status = request->status();
  const bool whole = status == Status::ok && request->bytes() == sizeof(GroupTags);
  connection_->release(request);
  ++groups_read_;
  if (status != Status::ok) return status;
  const GroupTags& tags = arriving_[at];
  if (!whole || tags.count < 1 || tags.count > kReceivesMax) return Status::internal_error;
  head_.tags = tags;
  head_.posted = 0;
  head_.slots.fill(kNoSlot);
  return post_tag_receives();
}

Status SendGroups::post_tag_receives() {
  while (receives_posted_ < groups_read_ + kGroupsMax) {
    const std::size_t at = receives_posted_ % kGroupsMax;
    const Status status = connection_->post_receive(&arriving_[at], sizeof(GroupTags), 0, &tag_receives_[at]);
    if (status == Status::would_block) return Status::ok;
    if (status != Status::ok) return status;
    ++receives_posted_;
  }
  return Status::ok;
}

Status SendGroups::test(unsigned slot, bool* done, int* size) {
  const std::lock_guard lock(mutex_);
  Posted& posted = sends_[slot];
  if (!posted.used) return Status::invalid_argument;
  if (posted.request == nullptr) static_cast<void>(advance());
  if (posted.request == nullptr) return failure_ != Status::ok ? failure_ : connection_->health();
  if (!posted.request->done()) connection_->progress(*posted.request);
  if (!posted.request->done()) return Status::ok;
  if (const Status status = posted.request->status(); status != Status::ok) return status;
  if (size != nullptr) *size = static_cast<int>(std::min<std::size_t>(posted.request->bytes(), INT_MAX));
  connection_->release(posted.request);
  posted = {};
  *done = true;
  return Status::ok;
}

bool SendGroups::forget(const void* mhandle) {
  const std::lock_guard lock(mutex_);
  const bool held = std::any_of(sends_.begin(), sends_.end(), [&](const Posted& each) {
    return each.used && each.request == nullptr && (each.send.mhandle == mhandle || each.send.mhandle == nullptr);
  });
  if (held) failure_ = Status::cancelled;
  return held;
}

}  // namespace weft::nccl
