// A lock for an engine's loop, which either the engine's own thread runs, or the thread of a caller that waits for a
// message. A caller that waits needs no other thread to be woken, so small messages are faster and idle engines cost
// nothing. A loop that moves many bytes belongs to the engine's thread, so that callers can do their own work
// meanwhile.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

namespace weft::engine {

class LoopLock {
 public:
  // After a caller last asked to run the engine's loop, the engine's thread leaves the loop to callers for this long.
  static constexpr std::int64_t kAttendedNs = 200'000;
  // A loop that moves kBulkBytes within kWindowNs belongs to the engine's thread until kBulkNs after it last did so.
  // The bytes of callers that wait for each message before they post the next do not count. A loop that carries stripes
  // for a caller that polls belongs to the engine's thread until kBulkNs after the caller's last call.
  static constexpr std::int64_t kWindowNs = 1'000'000, kBulkNs = 5'000'000;
  static constexpr std::uint64_t kBulkBytes = 512 * 1024;

  // For a caller's thread. False: another thread runs the loop.
  bool try_enter() noexcept {
    bool free = false;
    return !held_.load(std::memory_order_relaxed) &&
           held_.compare_exchange_strong(free, true, std::memory_order_acquire);
  }
  // For the engine's thread: waits until a caller has finished its iteration.
  void enter() noexcept {
    for (int tries = 0; !try_enter(); ++tries) {
      if (tries < kYields) {
        ::sched_yield();
      } else {  // the caller may have lost its core, or have a lower priority
        const timespec pause{0, kEnterPauseNs};
        ::nanosleep(&pause, nullptr);
      }
    }
  }
  void leave() noexcept { held_.store(false, std::memory_order_release); }

  // A caller asks for the loop. False: it belongs to the engine's thread.
  bool ask(std::int64_t now_ns) noexcept {
    if (now_ns < bulk_until_ns_.load(std::memory_order_relaxed)) return false;
    asked_ns_.store(now_ns, std::memory_order_seq_cst);
    return true;
  }
  // Counts an iteration that a thread other than the engine's has run; the lock must be held. iterations(): the count.
  void count_iteration() noexcept { iterations_.fetch_add(1, std::memory_order_seq_cst); }
  std::uint64_t iterations() const noexcept { return iterations_.load(std::memory_order_seq_cst); }
  // When a caller has last asked for the loop.
  std::int64_t asked_ns() const noexcept { return asked_ns_.load(std::memory_order_seq_cst); }
  // Forgets when a caller last asked, because it will not ask again soon.
  void forsake() noexcept { asked_ns_.store(INT64_MIN / 2, std::memory_order_seq_cst); }
  // Whether callers run the loop at present, or will do so at once.
  bool attended(std::int64_t now_ns) const noexcept {
    return now_ns - asked_ns_.load(std::memory_order_seq_cst) < kAttendedNs &&
           now_ns >= bulk_until_ns_.load(std::memory_order_relaxed);
  }

  // From now on the loop belongs to the engine's thread for kBulkNs. True: callers may have run it until now. May be
  // called on any thread.
  bool keep(std::int64_t now_ns) noexcept {
    if (bulk_until_ns_.load(std::memory_order_relaxed) > now_ns + kBulkNs / 2) return false;
    const bool was_attended = attended(now_ns);
    bulk_until_ns_.store(now_ns + kBulkNs, std::memory_order_relaxed);
    return was_attended;
  }

  // Counts the bytes that an iteration has sent and received. True: from now on the loop belongs to the engine's
  // thread. The lock must be held.
  bool count(std::int64_t now_ns, std::uint64_t bytes) noexcept {
    std::uint64_t before = window_bytes_.load(std::memory_order_relaxed);
    if (now_ns - window_ns_ > kWindowNs) {
      window_ns_ = now_ns;
      before = 0;
    }
    window_bytes_.store(before + bytes, std::memory_order_relaxed);
    if (before + bytes < kBulkBytes) return false;
    bulk_until_ns_.store(now_ns + kBulkNs, std::memory_order_relaxed);
    return true;
  }
  // Takes bytes off the count, because the caller that sent or received them waited and had no other work to do
  // meanwhile. May be called on any thread; if an iteration counts at the same time, the call may have no effect.
  void discount(std::uint64_t bytes) noexcept {
    const std::uint64_t counted = window_bytes_.load(std::memory_order_relaxed);
    window_bytes_.store(counted - std::min(counted, bytes), std::memory_order_relaxed);
  }

 private:
  static constexpr int kYields = 100;
  static constexpr long kEnterPauseNs = 50'000;
  std::atomic<bool> held_{true};  // the engine's thread holds the lock from the start
  std::atomic<std::int64_t> asked_ns_{INT64_MIN / 2};
  std::atomic<std::int64_t> bulk_until_ns_{0};
  std::atomic<std::uint64_t> iterations_{0};
  // These two members have a cache line of their own: the thread that runs the loop writes them in each iteration,
  // while callers that poll read the other members.
  alignas(64) std::int64_t window_ns_ = 0;
  std::atomic<std::uint64_t> window_bytes_{0};
};

}  // namespace weft::engine
