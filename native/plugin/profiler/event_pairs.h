// Pairs of handles of one event: that of weft's profiler and that of a chained profiler, which has no knowledge of
// weft's. NCCL gets the handle of the pair.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "native/plugin/handle_table.h"
#include "native/plugin/profiler/event_pool.h"

namespace weft::nccl {

struct EventPair {
  void *own = nullptr, *chained = nullptr;  // null: that profiler has not recorded the event
  void* context = nullptr;                  // NCCL's handle of the communicator
  // For a proxy operation: the number of the step that was started last, and the handle of its pair. If the network
  // could not accept the step's data, NCCL starts the step again, without stopping it first.
  int step = -1;
  void* step_event = nullptr;
};

class EventPairs {
 public:
  // Adds a pair and returns its handle; null: both handles are null, or there is no room. A pair that is `kept` can be
  // found after end(), until kKept others were added, because events that start later name it as their parent.
  void* add(EventPair pair, bool kept) noexcept {
    if (pair.own == nullptr && pair.chained == nullptr) return nullptr;
    if (kept) return keep(pair);
    OpaqueHandle handle{};
    EventPair* const made = running_.take(&handle);
    if (made == nullptr) return nullptr;
    *made = pair;
    return handle.value();
  }
  // Returns the pair of a handle; two null handles: the handle is unknown, or its event has ended.
  EventPair find(const void* event) noexcept {
    const OpaqueHandle handle = OpaqueHandle::of(event);
    if (handle.kind == HandleKind::chained_operation) return find_kept(handle);
    const EventPair* const found = running_.find(handle);
    return found == nullptr ? EventPair{} : *found;
  }
  // Returns the pair of an event that runs and is not kept; null: there is none.
  EventPair* running(const void* event) noexcept { return running_.find(OpaqueHandle::of(event)); }
  // Ends an event, and returns its pair as find() does. The handle of a pair that is not kept becomes unknown.
  EventPair end(const void* event) noexcept {
    const EventPair found = find(event);
    const OpaqueHandle handle = OpaqueHandle::of(event);
    if (running_.find(handle) != nullptr) running_.give_back(handle);
    return found;
  }

 private:
  static constexpr std::uint32_t kKept = 1 << 16;
  struct Kept {
    std::atomic<std::uint32_t> generation{0};  // 0: the entry is being written
    std::atomic<void*> own{nullptr}, chained{nullptr}, context{nullptr};
  };

  void* keep(EventPair pair) noexcept {
    const std::uint64_t number = added_.fetch_add(1, std::memory_order_relaxed);
    const auto index = static_cast<std::uint32_t>(number % kKept);
    const auto generation = static_cast<std::uint32_t>((number / kKept + 1) & OpaqueHandle::kGenerationMask);
    Kept& entry = kept_[index];
    entry.generation.store(0, std::memory_order_seq_cst);
    entry.own.store(pair.own, std::memory_order_seq_cst);
    entry.chained.store(pair.chained, std::memory_order_seq_cst);
    entry.context.store(pair.context, std::memory_order_seq_cst);
    entry.generation.store(generation, std::memory_order_seq_cst);
    return OpaqueHandle{HandleKind::chained_operation, 0, generation, index}.value();
  }
  EventPair find_kept(OpaqueHandle handle) const noexcept {
    if (handle.index >= kKept || handle.generation == 0) return {};
    const Kept& entry = kept_[handle.index];
    if (entry.generation.load(std::memory_order_seq_cst) != handle.generation) return {};
    EventPair pair;
    pair.own = entry.own.load(std::memory_order_seq_cst);
    pair.chained = entry.chained.load(std::memory_order_seq_cst);
    pair.context = entry.context.load(std::memory_order_seq_cst);
    // The entry may have been written for another event in between.
    return entry.generation.load(std::memory_order_seq_cst) == handle.generation ? pair : EventPair{};
  }

  EventPool<EventPair> running_{HandleKind::chained_event};
  std::array<Kept, kKept> kept_{};
  std::atomic<std::uint64_t> added_{0};
};

}  // namespace weft::nccl
