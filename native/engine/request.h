// A posted send or receive as its caller sees it: whether it is done, and its result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/core/status.h"

namespace weft::engine {

// A posted send or receive. It belongs to its connection; the caller returns it with Connection::release() when done.
class Request {
 public:
  bool done() const noexcept { return state_.load(std::memory_order_acquire) != kPending; }
  // Result of a request that is done: ok, or why it failed.
  Status status() const noexcept { return static_cast<Status>(state_.load(std::memory_order_acquire) - 1); }
  // Bytes sent or received by a request that is done. A received message may be shorter than the posted buffer.
  std::size_t bytes() const noexcept { return bytes_; }

 protected:
  static constexpr std::int32_t kPending = 0;
  std::atomic<std::int32_t> state_{kPending};  // kPending, or 1 + the Status of the result
  std::size_t bytes_ = 0;
};

// Called on an engine's thread when a request has ended: the engines no longer use its buffer, and its slot is free.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void on_complete(Status status, std::size_t bytes) noexcept = 0;
};

}  // namespace weft::engine
