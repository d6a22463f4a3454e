// A pool of events in progress, which are found by handles. Starting or ending an event takes no lock, and allocates
// only while the pool grows. A handle of an event that has ended finds nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "native/plugin/handle_table.h"

namespace weft::nccl {

// The limit for events in progress at the same time is a multiple of 1024.
template <typename Event, std::uint32_t kEventsMax = 1 << 18>
class EventPool {
  static_assert(kEventsMax <= OpaqueHandle::kIndexMask + 1);

 public:
  explicit EventPool(HandleKind kind) noexcept : kind_(kind) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool() {
    for (std::atomic<Block*>& block : blocks_) delete block.load(std::memory_order_relaxed);
  }

  // Takes a new event and sets its handle. Null: too many events are in progress, or memory ran out.
  Event* take(OpaqueHandle* handle) noexcept {
    std::uint32_t index = pop();
    if (index == kNone) index = grow();
    if (index == kNone) return nullptr;
    Slot& slot = made(index);
    const std::uint32_t generation = (slot.generation.load(std::memory_order_relaxed) + 1) & kGenerationMask;
    new (&slot.event) Event;
    slot.generation.store(generation, std::memory_order_release);  // an odd number: the slot is in use
    *handle = {kind_, 0, generation, index};
    return &slot.event;
  }
  Event* find(OpaqueHandle handle) noexcept {
    if (handle.kind != kind_ || handle.index >= kEventsMax) return nullptr;
    Slot* const slot = slot_at(handle.index);
    const bool known = slot != nullptr && (handle.generation & 1) != 0 &&
                       slot->generation.load(std::memory_order_acquire) == handle.generation;
    return known ? &slot->event : nullptr;
  }
  // Ends an event that find() has found. Ending an event twice has no effect.
  void give_back(OpaqueHandle handle) noexcept {
    std::uint32_t generation = handle.generation;
    if (!made(handle.index)
             .generation.compare_exchange_strong(generation, (generation + 1) & kGenerationMask,
                                                 std::memory_order_acq_rel)) {
      return;
    }
    push(handle.index);
  }

 private:
  static constexpr std::uint32_t kGenerationMask = OpaqueHandle::kGenerationMask;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::uint32_t kBlockSlots = 1024;
  struct Slot {
    Event event;
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint32_t> next{kNone};  // index of the next free slot
  };
  using Block = std::array<Slot, kBlockSlots>;

  Slot* slot_at(std::uint32_t index) noexcept {
    Block* const block = blocks_[index / kBlockSlots].load(std::memory_order_acquire);
    return block == nullptr ? nullptr : &(*block)[index % kBlockSlots];
  }
  // Returns the slot at an index whose block is allocated.
  Slot& made(std::uint32_t index) noexcept {
    return (*blocks_[index / kBlockSlots].load(std::memory_order_acquire))[index % kBlockSlots];
  }
  // The head of the list of free slots is an index and a count of changes. The count reveals that another thread has
  // taken and returned the slot in between (the ABA problem).
  std::uint32_t pop() noexcept {
    std::uint64_t head = free_.load(std::memory_order_acquire);
    for (;;) {
      const auto index = static_cast<std::uint32_t>(head);
      if (index == kNone) return kNone;
      const std::uint32_t next = made(index).next.load(std::memory_order_relaxed);
      const std::uint64_t after = ((head >> 32) + 1) << 32 | next;
      if (free_.compare_exchange_weak(head, after, std::memory_order_acq_rel)) return index;
    }
  }
  void push(std::uint32_t index) noexcept {
    std::uint64_t head = free_.load(std::memory_order_relaxed);
    for (;;) {
      made(index).next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
      const std::uint64_t after = ((head >> 32) + 1) << 32 | index;
      if (free_.compare_exchange_weak(head, after, std::memory_order_acq_rel)) return;
    }
  }
  // Takes a slot that was never used.
  std::uint32_t grow() noexcept {
    const std::uint32_t index = used_.fetch_add(1, std::memory_order_relaxed);
    if (index >= kEventsMax) {
      used_.store(kEventsMax, std::memory_order_relaxed);
      return kNone;
    }
    std::atomic<Block*>& place = blocks_[index / kBlockSlots];
    if (place.load(std::memory_order_acquire) == nullptr) {
      auto* const made = new (std::nothrow) Block;
      Block* none = nullptr;
      if (made == nullptr) return kNone;  // no memory for the slot, which is then never used
      if (!place.compare_exchange_strong(none, made, std::memory_order_acq_rel)) delete made;
    }
    return index;
  }

  const HandleKind kind_;
  std::array<std::atomic<Block*>, kEventsMax / kBlockSlots> blocks_{};
  std::atomic<std::uint64_t> free_{kNone};
  std::atomic<std::uint32_t> used_{0};
};

}  // namespace weft::nccl
