// Keeps a sender at most a window ahead of its receiver, so that no socket buffer overflows. Time spent waiting is not
// counted as processor time of either.
#pragma once

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace weft::bench::stages {

// Processor time of the calling thread while it runs.
class Stopwatch {
 public:
  void start() { begin_ns_ = thread_cpu_ns(); }
  void stop() { total_ns_ += thread_cpu_ns() - begin_ns_; }
  std::int64_t total_ns() const { return total_ns_; }

  static std::int64_t cpu_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  static std::int64_t thread_cpu_ns() { return cpu_ns(CLOCK_THREAD_CPUTIME_ID); }

 private:
  std::int64_t begin_ns_ = 0, total_ns_ = 0;
};

class Gate {
 public:
  explicit Gate(std::int64_t window_bytes) : window_bytes_(window_bytes) {}

  void sent(std::int64_t bytes) {
    const std::lock_guard held(mutex_);
    sent_ += bytes;
    if (sent_ - taken_ >= window_bytes_ / 4) changed_.notify_all();
  }

  void taken(std::int64_t bytes) {
    const std::lock_guard held(mutex_);
    taken_ += bytes;
    idle_since_ = {};
    if (sent_ - taken_ <= window_bytes_ / 2) changed_.notify_all();
  }

  // Waits until the sender may send; false: the other end failed.
  bool await_room(Stopwatch* watch) {
    return await(
        watch, [this] { return sent_ - taken_ < window_bytes_; },
        [this] { return sent_ - taken_ <= window_bytes_ / 2; });
  }

  // Waits until enough has been sent to be worth receiving; false: everything has been taken, or the other end failed.
  bool await_data(Stopwatch* watch) {
    const bool going = await(
        watch, [this] { return sent_ > taken_ || ended_; },
        [this] { return sent_ - taken_ >= window_bytes_ / 4 || ended_; });
    const std::lock_guard held(mutex_);
    return going && !(ended_ && taken_ >= sent_);
  }

  // Called if nothing has arrived although something was sent: a softirq may be late, or it was lost.
  void nothing_there(Stopwatch* watch) {
    watch->stop();
    std::unique_lock held(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (idle_since_ == std::chrono::steady_clock::time_point{}) idle_since_ = now;
    if (now - idle_since_ > std::chrono::seconds(2)) {
      lost_bytes_ += sent_ - taken_;
      taken_ = sent_;
      idle_since_ = {};
      changed_.notify_all();
    } else {
      changed_.wait_for(held, std::chrono::microseconds(50));
    }
    watch->start();
  }

  void end() {
    const std::lock_guard held(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  // Both ends stop. The first reason is kept.
  void fail(std::string reason) {
    const std::lock_guard held(mutex_);
    if (failure_.empty()) failure_ = std::move(reason);
    changed_.notify_all();
  }

  std::string failure() const {
    const std::lock_guard held(mutex_);
    return failure_;
  }
  std::int64_t taken_bytes() const { return taken_ - lost_bytes_; }
  std::int64_t lost_bytes() const { return lost_bytes_; }

 private:
  template <typename Now, typename Enough>
  bool await(Stopwatch* watch, const Now& now, const Enough& enough) {
    std::unique_lock held(mutex_);
    if (!failure_.empty()) return false;
    if (now()) return true;
    watch->stop();
    const bool came = changed_.wait_for(held, std::chrono::seconds(20), [&] { return enough() || !failure_.empty(); });
    if (!came) failure_ = "the other end made no progress in 20 s";
    watch->start();
    return failure_.empty();
  }

  const std::int64_t window_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t sent_ = 0, taken_ = 0, lost_bytes_ = 0;
  bool ended_ = false;
  std::string failure_;
  std::chrono::steady_clock::time_point idle_since_{};
};

}  // namespace weft::bench::stages
