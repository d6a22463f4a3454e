// Keeps track of messages whose bytes weft copies itself, and waits until those copies have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "native/engine/clock.h"

namespace weft::message {

// Messages that are not done. Copies may use a message's buffer after the engines have released it, until the message
// is done.
template <class Message>
class Unfinished {
 public:
  // Adds a message. May throw std::bad_alloc.
  void add(const std::shared_ptr<Message>& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.remove_if([](const std::weak_ptr<Message>& each) {
      const std::shared_ptr<Message> held = each.lock();
      return held == nullptr || held->done();
    });
    messages_.push_back(message);
  }

  // Sleeps until the messages for which `chosen` is true are done, or until the time is `until_ns`.
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
