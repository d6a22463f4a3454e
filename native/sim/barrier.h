// A reusable barrier for threads, like std::barrier. A waiting thread spins for a while before it blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace weft::sim {

class Barrier {
 public:
  explicit Barrier(std::size_t size) noexcept : size_(size) {}

  void wait() {
    const std::size_t round = round_.load(std::memory_order_acquire);
    if (come_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      come_.store(0, std::memory_order_relaxed);
      {
        const std::lock_guard lock(mutex_);
        round_.store(round + 1, std::memory_order_release);
      }
      all_here_.notify_all();
      return;
    }
    // Spins first: the work between two barriers is short, and a thread with its own CPU core arrives within
    // microseconds.
    for (int look = 0; look < kLooks; ++look) {
      if (round_.load(std::memory_order_acquire) != round) return;
    }
    std::unique_lock lock(mutex_);
    all_here_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
  static constexpr int kLooks = 4'000;

  const std::size_t size_;
  std::atomic<std::size_t> come_{0}, round_{0};
  std::mutex mutex_;
  std::condition_variable all_here_;
};

}  // namespace weft::sim
