// Messages whose bytes this library copies itself, and waiting for the end of those copies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/engine/clock.h"

namespace weft::message {

// The buffers of such a message are in use until it is done, which may be after the engines have released them.
template <class Message>
class Unfinished {
 public:
  // Throws std::bad_alloc.
  void add(const std::shared_ptr<Message>& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.remove_if([](const std::weak_ptr<Message>& each) {
      const std::shared_ptr<Message> held = each.lock();
      return held == nullptr || held->done();
    });
    messages_.push_back(message);
  }

  // Sleeps until the chosen messages are done, or the time is `until_ns`.
  template <class Chosen>
  void await(std::int64_t until_ns, const Chosen& chosen) const noexcept {
    while (const std::shared_ptr<Message> message = first(chosen)) {
      const std::int64_t left_ns = until_ns - engine::now_ns();
      if (left_ns <= 0) return;
      static_cast<void>(message->wait(left_ns));
    }
  }

 private:
  template <class Chosen>
  std::shared_ptr<Message> first(const Chosen& chosen) const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::weak_ptr<Message>& each : messages_) {
      std::shared_ptr<Message> message = each.lock();
      if (message != nullptr && !message->done() && chosen(*message)) return message;
    }
    return nullptr;
  }

  mutable std::mutex mutex_;
  std::list<std::weak_ptr<Message>> messages_;
};

}  // namespace weft::message
