// The backlog: sends and receives of a connection that wait for room in the engines, and are posted in order by a
// thread of the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/core/status.h"

namespace weft::message {

class BacklogThread;

// A send or a receive that is not posted to the engines yet. Its functions must not call the backlog.
class Post {
 public:
  virtual ~Post() = default;
  // Posts it to the engines. would_block: they have no room; any other error: it will never be posted.
  virtual Status begin() noexcept = 0;
  // Called if it will never be posted, whether or not begin() was tried.
  virtual void cancel(Status reason) noexcept = 0;
  virtual bool overlaps(const void* data, std::size_t bytes) const noexcept = 0;
};

class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  Backlog(BacklogThread* thread, std::size_t posts_max) : thread_(thread), posts_max_(posts_max) {}

  enum class Way : std::uint8_t { send, receive };
  // ok: it is posted, or waits. would_block: `posts_max` already wait in this direction.
  Status add(Way way, const std::shared_ptr<Post>& post) noexcept;
  // Withdraws waiting posts that overlap the range; they end with `cancelled`.
  void withdraw(const void* data, std::size_t bytes) noexcept;
  // Withdraws a waiting post; false: it does not wait.
  bool withdraw(const Post* post) noexcept;
  // Ends all waiting posts; later ones do not wait.
  void close(Status reason) noexcept;

  // The backlog thread: posts as much as there is room for. True while some posts wait. *moved: a post was posted or
  // ended.
  bool drain(bool* moved) noexcept;

 private:
  // A list, because an empty list needs no memory, and closing must work when memory runs out.
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
