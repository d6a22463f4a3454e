// Posts waiting messages in order. If a post fails, only that message ends, and the next one is tried.
#include "native/message/backlog.h"

#include <new>
#include <utility>

#include "native/message/backlog_thread.h"

namespace weft::message {

// shared_from_this() cannot throw: a shared pointer holds this object. NOLINTNEXTLINE(bugprone-exception-escape)
Status Backlog::add(Direction direction, const std::shared_ptr<Post>& post) noexcept {
  Lane& lane = this->lane(direction);
  try {
    const std::lock_guard<engine::SmallMutex> lock(lane.mutex);
    if (lane.closed) return Status::connection_closed;
    if (lane.waiting.empty()) {
      const Status status = post->begin();
      if (status != Status::would_block) return status;
    }
    if (lane.waiting.size() >= posts_max_) return Status::would_block;
    lane.waiting.push_back(post);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  const Status status = thread_->watch(shared_from_this());
  if (status == Status::ok || !withdraw(post.get())) return Status::ok;
  return status;
}

bool Backlog::drain(bool* moved) noexcept {
  bool waits = false;
  for (Lane& lane : lanes_) {
    const std::lock_guard<engine::SmallMutex> lock(lane.mutex);
    while (!lane.waiting.empty()) {
      const Status status = lane.waiting.front()->begin();
      if (status == Status::would_block) break;
      if (status != Status::ok) lane.waiting.front()->cancel(status);
      lane.waiting.pop_front();
      *moved = true;
    }
    waits = waits || !lane.waiting.empty();
  }
  return waits;
}

template <class Chosen>
bool Backlog::take_back(const Chosen& chosen) noexcept {
  Posts taken;
  for (Lane& lane : lanes_) {
    const std::lock_guard<engine::SmallMutex> lock(lane.mutex);
    for (auto post = lane.waiting.begin(); post != lane.waiting.end();) {
      const auto next = std::next(post);
      if (chosen(**post)) taken.splice(taken.end(), lane.waiting, post);
      post = next;
    }
  }
  for (const auto& post : taken) post->cancel(Status::cancelled);
  return !taken.empty();
}

void Backlog::withdraw(const void* data, std::size_t bytes) noexcept {
  static_cast<void>(take_back([&](const Post& post) { return post.overlaps(data, bytes); }));
}

bool Backlog::withdraw(const Post* post) noexcept {
  return take_back([&](const Post& each) { return &each == post; });
}

void Backlog::close(Status reason) noexcept {
  for (Lane& lane : lanes_) {
    Posts ended;
    {
      const std::lock_guard<engine::SmallMutex> lock(lane.mutex);
      lane.closed = true;
      ended.swap(lane.waiting);
    }
    for (const auto& post : ended) post->cancel(reason);
  }
}

}  // namespace weft::message
