// Lets a caller that waits for its connection run the control thread's loop itself. That saves two switches of threads,
// which take longer than the work. The thread stays away meanwhile, and checks regularly whether the caller has gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace weft::control {

class LoopShare {
 public:
  // Held during an iteration, by whoever runs it.
  std::mutex& mutex() noexcept { return mutex_; }

  // Called by a thread that waits for its connection (the caller), to take over the control thread's loop. False:
  // another caller runs the loop. If true, leave() must follow.
  bool enter() noexcept { return !taken_.exchange(true, std::memory_order_acq_rel); }
  // For the caller that has entered, before each iteration. True: the control thread may be asleep in poll() and must
  // be woken, so that it leaves the loop to this caller.
  bool see_caller(std::int64_t now_ns) noexcept {
    seen_ns_.store(now_ns, std::memory_order_seq_cst);
    return !napping_.load(std::memory_order_seq_cst);
  }
  // Called by the caller in each iteration of the loop that it runs; the mutex is held.
  void count_round() noexcept { rounds_.fetch_add(1, std::memory_order_seq_cst); }
  // The caller gives the loop back. True: the control thread must be woken, because it may have decided how long to
  // sleep before the caller's last iterations.
  bool leave() noexcept {
    seen_ns_.store(kNever, std::memory_order_seq_cst);
    taken_.store(false, std::memory_order_release);
    return !napping_.load(std::memory_order_seq_cst);
  }

  // Called by the control thread before it sleeps: naps while a caller runs the loop, then calls prepare(), which
  // decides for how long to sleep. Each later iteration of a caller either is seen here, or the caller is told to wake
  // the control thread.
  template <typename Now, typename Prepare>
  void stay_away(const std::atomic<bool>& stopping, const Now& now, const Prepare& prepare) noexcept {
    std::uint64_t rounds = 0;
    do {
      napping_.store(true, std::memory_order_seq_cst);
      while (!stopping.load() && present(now())) {
        const timespec nap{0, kNapNs};
        ::nanosleep(&nap, nullptr);
      }
      rounds = rounds_.load(std::memory_order_seq_cst);
      prepare();
      napping_.store(false, std::memory_order_seq_cst);
    } while (!stopping.load() && (present(now()) || rounds != rounds_.load(std::memory_order_seq_cst)));
  }

 private:
  static constexpr std::int64_t kNever = INT64_MIN / 2;
  // A caller counts as present for kPresentNs after it was last seen, which it is every millisecond.
  static constexpr std::int64_t kPresentNs = 3'000'000, kNapNs = 1'000'000;
  bool present(std::int64_t now_ns) const noexcept {
    return now_ns - seen_ns_.load(std::memory_order_seq_cst) < kPresentNs;
  }

  std::mutex mutex_;
  std::atomic<bool> taken_{false}, napping_{false};
  std::atomic<std::int64_t> seen_ns_{kNever};
  std::atomic<std::uint64_t> rounds_{0};  // number of loop iterations that callers have run
};

}  // namespace weft::control
