// One posted send or receive, as its caller sees it: whether it is done, and how it ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/core/status.h"

namespace weft::engine {

// One posted send or receive. Owned by the connection; given back with Connection::release once done.
class Request {
 public:
  bool done() const noexcept { return state_.load(std::memory_order_acquire) != kPending; }
  // Valid once done: ok, or why it failed.
  Status status() const noexcept { return static_cast<Status>(state_.load(std::memory_order_acquire) - 1); }
  // Valid once done: bytes received, which may be fewer than were posted; for a send the bytes sent.
  std::size_t bytes() const noexcept { return bytes_; }

 protected:
  static constexpr std::int32_t kPending = 0;
  std::atomic<std::int32_t> state_{kPending};  // 0, or 1 + Status
  std::size_t bytes_ = 0;
};

// Told, in an engine's thread, that a request is over. The engines have let go of its buffer, and its slot is free.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void on_complete(Status status, std::size_t bytes) noexcept = 0;
};

}  // namespace weft::engine
