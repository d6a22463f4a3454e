// A group is announced once all its receives are posted, so that the sender's messages find them.
#include "native/plugin/receive_groups.h"

#include <algorithm>
#include <climits>

namespace weft::nccl {

bool ReceiveGroups::Group::is_of(const Buffer* given, int given_count) const {
  return given_count == count &&
         std::equal(given, given + given_count, buffers.begin(), [](const auto& a, const auto& b) {
           return a.data == b.data && a.capacity_bytes == b.capacity_bytes && a.tag == b.tag && a.mhandle == b.mhandle;
         });
}

Status ReceiveGroups::add(unsigned slot, const Buffer* buffers, int count) {
  const std::lock_guard lock(mutex_);
  if (failure_ != Status::ok) return failure_;
  if (const Status health = connection_->health(); health != Status::ok) return health;
  if (pending_.count == 0) {
    pending_.count = count;
    pending_.posted = 0;
    std::copy(buffers, buffers + count, pending_.buffers.begin());
  } else if (!pending_.is_of(buffers, count)) {
    return Status::would_block;  // NCCL offers all groups of a connection in turn
  }
  Status status = post(&pending_);
  if (status == Status::ok) status = announce(pending_);
  if (status == Status::ok) groups_[slot] = pending_;
  if (status == Status::ok || pending_.posted == 0) pending_.count = 0;
  return status;
}

Status ReceiveGroups::post(Group* group) {
  while (group->posted < group->count) {
    const auto at = static_cast<std::size_t>(group->posted);
    const Buffer& buffer = group->buffers[at];
    const Status status = connection_->post_receive(buffer.data, buffer.capacity_bytes, buffer.memory,
                                                    &group->requests[at], buffer.channel);
    if (status != Status::ok) return status;
    ++group->posted;
  }
  return Status::ok;
}

Status ReceiveGroups::announce(const Group& group) {
  Announcement& announcement = announcements_[next_announcement_];
  if (announcement.request != nullptr) {
    if (!announcement.request->done()) return Status::would_block;
    const Status status = announcement.request->status();
    connection_->release(announcement.request);
    announcement.request = nullptr;
    if (status != Status::ok) return status;
  }
  announcement.tags = {};
  announcement.tags.count = group.count;
  for (std::size_t i = 0; i < static_cast<std::size_t>(group.count); ++i) {
    announcement.tags.tags[i] = group.buffers[i].tag;
  }
  const Status status = connection_->post_send(&announcement.tags, sizeof announcement.tags, 0, &announcement.request);
  if (status == Status::ok) next_announcement_ = (next_announcement_ + 1) % announcements_.size();
  return status;
}

Status ReceiveGroups::test(unsigned slot, bool* done, int* sizes) {
  const std::lock_guard lock(mutex_);
  Group& group = groups_[slot];
  if (group.count == 0) return Status::invalid_argument;
  for (std::size_t i = 0; i < static_cast<std::size_t>(group.count); ++i) {
    engine::Request* const request = group.requests[i];
    if (!request->done()) connection_->progress(*request);
    if (!request->done()) return Status::ok;
    if (request->status() != Status::ok) return request->status();
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(group.count); ++i) {
    if (sizes != nullptr) sizes[i] = static_cast<int>(std::min<std::size_t>(group.requests[i]->bytes(), INT_MAX));
    connection_->release(group.requests[i]);
  }
  group.count = 0;
  *done = true;
  return Status::ok;
}

bool ReceiveGroups::Group::may_use(const void* mhandle) const {
  return std::any_of(buffers.begin(), buffers.begin() + count,
                     [&](const Buffer& each) { return each.mhandle == mhandle || each.mhandle == nullptr; });
}

bool ReceiveGroups::forget(const void* mhandle) {
  const std::lock_guard lock(mutex_);
  if (!pending_.may_use(mhandle)) return false;
  failure_ = Status::cancelled;
  return true;
}

bool ReceiveGroups::may_use(const void* mhandle) {
  const std::lock_guard lock(mutex_);
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& each) { return each.may_use(mhandle); });
}

}  // namespace weft::nccl
