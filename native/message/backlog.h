// Sends and receives of one connection that wait for room in the engines: posted in order, by a thread of the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/core/status.h"

namespace weft::message {

class BacklogThread;

// A send or a receive before the engines have it. None of its calls may come back to the backlog.
class Post {
 public:
  virtual ~Post() = default;
  // Hands it to the engines. would_block: they have no room; any other error: it will never be posted.
  virtual Status begin() noexcept = 0;
  // It will never be posted, after begin() was tried in vain or not at all.
  virtual void cancel(Status reason) noexcept = 0;
  virtual bool overlaps(const void* data, std::size_t bytes) const noexcept = 0;
};

class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  Backlog(BacklogThread* thread, std::size_t posts_max) : thread_(thread), posts_max_(posts_max) {}

  enum class Way : std::uint8_t { send, receive };
  // ok: it is posted, or waits. would_block: `posts_max` wait in this direction already.
  Status add(Way way, const std::shared_ptr<Post>& post) noexcept;
  // Takes back what waits and overlaps the range. Its caller learns `cancelled`.
  void withdraw(const void* data, std::size_t bytes) noexcept;
  // Takes back one that waits; false: it does not wait.
  bool withdraw(const Post* post) noexcept;
  // Ends all that waits; nothing waits any more.
  void close(Status reason) noexcept;

  // The backlog thread: posts what there is room for. True while some wait. *moved: something was posted or ended.
  bool drain(bool* moved) noexcept;

 private:
  // A list: an empty one takes no memory, and closing must work in a shortage.
  using Posts = std::list<std::shared_ptr<Post>>;
  struct Lane {
    std::mutex mutex;
    Posts waiting;
    bool closed = false;
  };
  Lane& lane(Way way) noexcept { return lanes_[way == Way::receive ? 1 : 0]; }
  template <class Chosen>
  bool take_back(const Chosen& chosen) noexcept;

  BacklogThread* const thread_;
  const std::size_t posts_max_;
  Lane lanes_[2];
};

}  // namespace weft::message
