// Pairs of handles for one event: the handle of weft's profiler and that of the chained profiler, which does not know
// weft's. NCCL gets a third handle, which names the pair. A pair is kept at least until NCCL has stopped its event.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/plugin/handle_table.h"
#include "native/plugin/profiler/event_pool.h"

namespace weft::nccl {

struct EventPair {
  void *own = nullptr, *chained = nullptr;  // the event's handles in weft's and the chained profiler; null: none
  void* context = nullptr;                  // NCCL's handle of the communicator
  // For a proxy operation: the number of the step that was started last, and the handle of its pair. If the network
  // could not accept the step's data, NCCL starts the step again, without stopping it first.
  int step = -1;
  void* step_event = nullptr;
};

class EventPairs {
 public:
  // How long find() must find a pair: until its event has ended; past the end, because events that start later may name
  // it as their parent; or for replays of a captured graph, which may name it at any time.
  enum class Lifetime : std::uint8_t { until_end, past_end, replays };

  // Adds a pair and returns its handle; null: both handles are null, or there is no room, which is counted.
  void* add(EventPair pair, Lifetime lifetime) noexcept {
    if (pair.own == nullptr && pair.chained == nullptr) return nullptr;
    if (lifetime != Lifetime::until_end) return keep(pair, lifetime);
    OpaqueHandle handle{};
    EventPair* const made = running_.take(&handle);
    if (made == nullptr) return count_lost();
    *made = pair;
    return handle.value();
  }
  // Returns the pair of a handle; two null handles: the handle is unknown, or its event has ended and is forgotten.
  EventPair find(const void* event) noexcept {
    const OpaqueHandle handle = OpaqueHandle::of(event);
    if (handle.kind == HandleKind::chained_operation) return find_kept(handle);
    const EventPair* const found = running_.find(handle);
    return found == nullptr ? EventPair{} : *found;
  }
  // Returns the pair of an event that runs and is not kept past its end; null: there is none.
  EventPair* running(const void* event) noexcept { return running_.find(OpaqueHandle::of(event)); }
  // Ends an event, and returns its pair as find() does. A kept pair is forgotten once many others have ended.
  EventPair end(const void* event) noexcept {
    const EventPair found = find(event);
    const OpaqueHandle handle = OpaqueHandle::of(event);
    if (running_.find(handle) != nullptr) running_.give_back(handle);
    if (const Kept* const kept = kept_.find(handle)) {
      const bool is_captured = __atomic_load_n(&kept->is_captured, __ATOMIC_RELAXED);
      const OpaqueHandle oldest = is_captured ? captured_.push(handle) : ended_.push(handle);
      if (kept_.find(oldest) != nullptr) kept_.give_back(oldest);
    }
    return found;
  }
  // How many events were not recorded for lack of room, plus how many lookups named a forgotten event.
  std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

  // How many ended events are kept at most: of those that no CUDA graph captured, and of those that one captured.
  static constexpr std::uint32_t kEnded = 1 << 18, kCaptured = 1 << 17;
  static constexpr std::uint32_t kKeptMax = 1 << 19;  // limit of kept events, ended or not

 private:
  // Accessed atomically, because a thread may look up an old handle while another event reuses the entry.
  struct Kept {
    void *own, *chained, *context;
    bool is_captured;
  };
  // The handles of the last `size` events that have ended.
  template <std::uint32_t size>
  class Ended {
   public:
    // Adds a handle and returns the oldest one, which it replaces.
    OpaqueHandle push(OpaqueHandle handle) noexcept {
      const std::uint64_t number = added_.fetch_add(1, std::memory_order_relaxed);
      return OpaqueHandle::of(handles_[number % size].exchange(handle.value(), std::memory_order_acq_rel));
    }

   private:
    std::array<std::atomic<void*>, size> handles_{};
    std::atomic<std::uint64_t> added_{0};
  };

  void* keep(EventPair pair, Lifetime lifetime) noexcept {
    OpaqueHandle handle{};
    Kept* const made = kept_.take(&handle);
    if (made == nullptr) return count_lost();
    __atomic_store_n(&made->own, pair.own, __ATOMIC_RELEASE);
    __atomic_store_n(&made->chained, pair.chained, __ATOMIC_RELEASE);
    __atomic_store_n(&made->context, pair.context, __ATOMIC_RELEASE);
    __atomic_store_n(&made->is_captured, lifetime == Lifetime::replays, __ATOMIC_RELEASE);
    return handle.value();
  }
  EventPair find_kept(OpaqueHandle handle) noexcept {
    EventPair pair;
    const Kept* const kept = kept_.find(handle);
    if (kept != nullptr) {
      pair.own = __atomic_load_n(&kept->own, __ATOMIC_ACQUIRE);
      pair.chained = __atomic_load_n(&kept->chained, __ATOMIC_ACQUIRE);
      pair.context = __atomic_load_n(&kept->context, __ATOMIC_ACQUIRE);
      // The handles belong to this event only if no other event has reused the entry meanwhile.
      if (kept_.find(handle) == kept) return pair;
    }
    count_lost();
    return {};
  }
  void* count_lost() noexcept {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }

  EventPool<EventPair> running_{HandleKind::chained_event};
  EventPool<Kept, kKeptMax> kept_{HandleKind::chained_operation};
  Ended<kEnded> ended_;
  Ended<kCaptured> captured_;
  std::atomic<std::uint64_t> lost_{0};
};

}  // namespace weft::nccl
