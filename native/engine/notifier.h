// A file descriptor for event loops that becomes readable when an operation completes. It is created at its first use.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "native/engine/futex.h"

namespace weft::engine {

class Notifier {
 public:
  Notifier() = default;
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;
  ~Notifier() {
    if (descriptor_.load() >= 0) ::close(descriptor_.load());
  }

  // Returns the file descriptor; -1 if the process has none left.
  int descriptor() noexcept {
    int made = descriptor_.load(std::memory_order_acquire);
    if (made >= 0) return made;
    made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int expected = -1;
    if (made >= 0 && !descriptor_.compare_exchange_strong(expected, made)) {
      ::close(made);
      made = expected;
    }
    return made;
  }

  void notify() noexcept {
    if (awaited_.load(std::memory_order_seq_cst) && awaited_.exchange(false)) wake();
    const int descriptor = descriptor_.load(std::memory_order_acquire);
    if (descriptor < 0) return;
    const std::uint64_t one = 1;
    static_cast<void>(!::write(descriptor, &one, sizeof one));
  }

  // For a thread that waits for notifications: it reads turn(), a count of the wake-ups, calls ask(), checks for work,
  // and calls sleep(), which returns when the count has changed or the timeout has passed.
  std::int32_t turn() const noexcept { return turn_.load(std::memory_order_seq_cst); }
  void ask() noexcept { awaited_.store(true, std::memory_order_seq_cst); }
  void sleep(std::int32_t turn, std::int64_t timeout_ns) noexcept { futex_wait(&turn_, turn, timeout_ns); }
  void wake() noexcept {
    turn_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(&turn_);
  }

 private:
  std::atomic<int> descriptor_{-1};
  std::atomic<std::int32_t> turn_{0};
  std::atomic<bool> awaited_{false};
};

}  // namespace weft::engine
