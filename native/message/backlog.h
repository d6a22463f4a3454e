// The backlog of a connection: sends and receives that wait for room in the engines. A thread of the runtime posts them
// in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/core/status.h"
#include "native/engine/small_mutex.h"

namespace weft::message {

class BacklogThread;

// A send or receive that may have to wait in the backlog. Its functions must not call the backlog, which holds a mutex
// while it calls them.
class Post {
 public:
  virtual ~Post() = default;
  // Posts the message to the engines. would_block: they have no room yet. Any other error is final.
  virtual Status begin() noexcept = 0;
  // Ends a message that will never be posted.
  virtual void cancel(Status reason) noexcept = 0;
  virtual bool overlaps(const void* data, std::size_t bytes) const noexcept = 0;
};

class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  Backlog(BacklogThread* thread, std::size_t posts_max) : thread_(thread), posts_max_(posts_max) {}

  enum class Direction : std::uint8_t { send, receive };
  // Posts a message or lets it wait (ok). would_block: `posts_max` messages already wait in this direction.
  Status add(Direction direction, const std::shared_ptr<Post>& post) noexcept;
  // Removes waiting messages that overlap this memory. They end with Status::cancelled.
  void withdraw(const void* data, std::size_t bytes) noexcept;
  // Removes a waiting message, which ends with Status::cancelled. False: the message was not waiting.
  bool withdraw(const Post* post) noexcept;
  // Ends all waiting messages with `reason`, and refuses later ones.
  void close(Status reason) noexcept;

  // Posts as many waiting messages as the engines have room for; called by the backlog thread. True while messages
  // wait. Sets *moved if any was posted or has ended.
  bool drain(bool* moved) noexcept;

 private:
  // The waiting messages. A list, because an empty list needs no memory, and closing must work when memory runs out.
  using Posts = std::list<std::shared_ptr<Post>>;
  struct Lane {
    engine::SmallMutex mutex;
    Posts waiting;
    bool closed = false;
  };
  Lane& lane(Direction direction) noexcept { return lanes_[direction == Direction::receive ? 1 : 0]; }
  template <class Chosen>
  bool take_back(const Chosen& chosen) noexcept;

  BacklogThread* const thread_;
  const std::size_t posts_max_;
  Lane lanes_[2];
};

}  // namespace weft::message
