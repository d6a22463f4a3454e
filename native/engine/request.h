// The caller's view of one posted send or receive: whether it is done, and its result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/core/status.h"

namespace weft::engine {

// Owned by the connection; released with Connection::release once done.
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

// Called on an engine's thread when a request has ended. The engines no longer use its buffer, and its slot is free.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void on_complete(Status status, std::size_t bytes) noexcept = 0;
};

}  // namespace weft::engine
