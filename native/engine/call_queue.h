// A queue of requests from other threads to an engine: own a deferred flow, abort a flow, or run a function on the
// engine's thread.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "native/core/status.h"
#include "native/engine/clock.h"
#include "native/engine/futex.h"

namespace weft::engine {

class ConnectionCore;

// A function that an engine's thread runs for another thread, which waits for it.
class Call {
 public:
  explicit Call(const std::function<void()>& work) noexcept : work_(work) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run() noexcept {
    try {
      work_();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    done_.store(1, std::memory_order_release);
    // The waiting thread may have returned already and destroyed this object. That is safe: the kernel only uses the
    // address and does not read the memory, and a thread that waits at the same address for another object checks its
    // own condition again.
    futex_wake_all(&done_);
  }
  // Waits until the function has run, and rethrows its exception.
  void wait() {
    // Polls first: an engine that does not sleep runs the function within microseconds, sooner than a sleeping thread
    // wakes up.
    for (const std::int64_t until_ns = now_ns() + kPollNs; done_.load(std::memory_order_acquire) == 0;) {
      if (now_ns() >= until_ns) break;
      relax();
    }
    while (done_.load(std::memory_order_acquire) == 0) futex_wait(&done_, 0, 1'000'000);
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }

 private:
  static constexpr std::int64_t kPollNs = 20'000;
  const std::function<void()>& work_;
  std::exception_ptr thrown_;
  std::atomic<std::int32_t> done_{0};
};

class CallQueue {
 public:
  struct Abort {
    std::uint32_t flow = 0;
    std::uint64_t connection = 0;  // id of the connection that owned the flow; flow indices are reused
    Status reason = Status::ok;
  };

  // A deferred flow of a connection, which is the flow's owner from now on.
  struct Deferred {
    std::uint32_t flow = 0, peer = 0;
    std::shared_ptr<ConnectionCore> owner;
  };

  // Add a request; may be called from any thread, which must then wake the engine. False: out of memory.
  bool post(const Abort& abort) noexcept { return push({nullptr, abort, {}}) != 0; }
  bool post(Call* call) noexcept { return push({call, {}, {}}) != 0; }
  // A deferred flow can wait until something else wakes the engine. Returns the number of queued requests; 0: out of
  // memory.
  std::size_t post(Deferred deferred) noexcept { return push({nullptr, {}, std::move(deferred)}); }

  // Called by the engine's thread before it sleeps. Sequentially consistent: either the engine sees a new request, or
  // the posting thread sees that the engine sleeps.
  bool empty() const noexcept { return !any_.load(std::memory_order_seq_cst); }
  // Handles all queued requests, in order. False: there were none.
  template <class OnAbort, class OnDeferred>
  bool take(const OnAbort& on_abort, const OnDeferred& on_deferred) noexcept {
    if (!any_.load(std::memory_order_acquire)) return false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      taken_.swap(queued_);
      any_.store(false, std::memory_order_relaxed);
    }
    for (Entry& entry : taken_) {
      if (entry.call != nullptr) {
        entry.call->run();
      } else if (entry.deferred.owner != nullptr) {
        on_deferred(std::move(entry.deferred));
      } else {
        on_abort(entry.abort);
      }
    }
    const bool found = !taken_.empty();
    taken_.clear();
    return found;
  }

 private:
  struct Entry {
    Call* call;   // null: the request is another one
    Abort abort;  // if `deferred` has no owner
    Deferred deferred;
  };
  std::size_t push(Entry entry) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      queued_.push_back(std::move(entry));
      any_.store(true, std::memory_order_seq_cst);
      return queued_.size();
    } catch (const std::bad_alloc&) {
      return 0;
    }
  }

  std::mutex mutex_;
  std::vector<Entry> queued_, taken_;  // swapped by take(), so that both keep their allocated memory
  std::atomic<bool> any_{false};
};

}  // namespace weft::engine
