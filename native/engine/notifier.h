// One file descriptor that becomes readable when something finished, for event loops; free while nobody asked for it.
// Says that something happened, not what.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace weft::engine {

class Notifier {
 public:
  Notifier() = default;
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;
  ~Notifier() {
    if (descriptor_.load() >= 0) ::close(descriptor_.load());
  }

  // -1 when the process is out of descriptors.
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
    const int descriptor = descriptor_.load(std::memory_order_acquire);
    if (descriptor < 0) return;
    const std::uint64_t one = 1;
    static_cast<void>(!::write(descriptor, &one, sizeof one));
  }

 private:
  std::atomic<int> descriptor_{-1};
};

}  // namespace weft::engine
