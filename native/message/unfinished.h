// Keeps track of messages whose bytes weft copies itself, and waits until those copies have ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/engine/clock.h"
#include "native/engine/small_mutex.h"

namespace weft::message {

// Messages that are not done. Copies may use a message's buffer after the engines have released it, until the message
// is done.
template <class Message>
class Unfinished {
 public:
  // Adds a message. May throw std::bad_alloc.
  void add(const std::shared_ptr<Message>& message) {
    const std::lock_guard<engine::SmallMutex> lock(mutex_);
    // Finished messages are dropped whenever the list has doubled, so that a post takes constant time on average.
    if (messages_.size() >= prune_at_) {
      static_cast<void>(first([](const Message&) { return false; }));
      prune_at_ = std::max<std::size_t>(2 * messages_.size(), 64);
    }
    messages_.push_back(message);
  }

  // Sleeps until the messages for which `chosen` is true are done, or until the time is `until_ns`.
  template <class Chosen>
  void await(std::int64_t until_ns, const Chosen& chosen) noexcept {
    for (;;) {
      std::shared_ptr<Message> message;
      {
        const std::lock_guard<engine::SmallMutex> lock(mutex_);
        message = first(chosen);
      }
      const std::int64_t left_ns = until_ns - engine::now_ns();
      if (message == nullptr || left_ns <= 0) return;
      static_cast<void>(message->wait(left_ns));
    }
  }

 private:
  // The first unfinished message for which `chosen` is true. Drops the finished messages before it. The mutex must be
  // held.
  template <class Chosen>
  std::shared_ptr<Message> first(const Chosen& chosen) noexcept {
    for (auto each = messages_.begin(); each != messages_.end();) {
      std::shared_ptr<Message> message = each->lock();
      if (message == nullptr || message->done()) {
        each = messages_.erase(each);
        continue;
      }
      if (chosen(*message)) return message;
      ++each;
    }
    return nullptr;
  }

  engine::SmallMutex mutex_;
  std::list<std::weak_ptr<Message>> messages_;
  std::size_t prune_at_ = 64;
};

}  // namespace weft::message
