// The result of a message, for which threads can wait.
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
  // Result of a message that is done: ok, or why it failed.
  Status status() const noexcept { return static_cast<Status>(state_.load(std::memory_order_acquire) - 1); }
  // Number of bytes sent or received; valid when the message is done.
  std::size_t bytes() const noexcept { return bytes_; }
  // Sleeps until the message is done (ok) or the timeout expires (timed_out). May be called from any thread.
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
  // Sets the result; to be called once. Waiting threads may release the message as soon as the state is stored.
  void set(Status status, std::size_t bytes) noexcept {
    bytes_ = bytes;
    state_.store(1 + static_cast<std::int32_t>(status), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) engine::futex_wake_all(&state_);
  }

 private:
  std::atomic<std::int32_t> state_{0};  // 0: not done; otherwise 1 + the Status of the result
  std::atomic<std::int32_t> sleepers_{0};
  std::size_t bytes_ = 0;
};

}  // namespace weft::message
