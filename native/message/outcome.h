// The outcome of a message, and waiting for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/core/status.h"
#include "native/engine/clock.h"
#include "native/engine/futex.h"

namespace weft::message {

class Outcome {
 public:
  bool done() const noexcept { return state_.load(std::memory_order_acquire) != 0; }
  // Valid once done: ok, or why it failed.
  Status status() const noexcept { return static_cast<Status>(state_.load(std::memory_order_acquire) - 1); }
  // Valid once done: the bytes sent or received.
  std::size_t bytes() const noexcept { return bytes_; }
  // Sleeps until it is done (ok) or the timeout expires (timed_out). Any thread.
  Status wait(std::int64_t timeout_ns) noexcept {
    const std::int64_t until_ns = engine::later_ns(engine::now_ns(), timeout_ns);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (std::int64_t left_ns = timeout_ns; !done() && left_ns > 0; left_ns = until_ns - engine::now_ns()) {
      engine::futex_wait(&state_, 0, left_ns);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return done() ? Status::ok : Status::timed_out;
  }

 protected:
  Outcome() = default;
  ~Outcome() = default;
  // Called once. Waiting threads may release the message as soon as the state is stored.
  void set(Status status, std::size_t bytes) noexcept {
    bytes_ = bytes;
    state_.store(1 + static_cast<std::int32_t>(status), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) engine::futex_wake_all(&state_);
  }

 private:
  std::atomic<std::int32_t> state_{0};  // 0, or 1 + Status
  std::atomic<std::int32_t> sleepers_{0};
  std::size_t bytes_ = 0;
};

}  // namespace weft::message
