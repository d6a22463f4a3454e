// A bounded queue of commands from many callers to one engine (Vyukov's bounded MPMC queue with one consumer). After a
// successful reserve(), post() cannot fail.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::engine {

template <class Command>
class CommandRing {
 public:
  explicit CommandRing(std::size_t capacity)
      : cells_(new Cell[capacity]), mask_(capacity - 1), free_(static_cast<std::int64_t>(capacity)) {
    for (std::size_t i = 0; i < capacity; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // Reserves room for `count` commands, which must be posted or given back. False: there is not enough room.
  bool reserve(std::int64_t count) noexcept {
    if (free_.fetch_sub(count, std::memory_order_acquire) >= count) return true;
    free_.fetch_add(count, std::memory_order_release);
    return false;
  }
  void give_back(std::int64_t count) noexcept { free_.fetch_add(count, std::memory_order_release); }

  void post(const Command& command) noexcept {
    const std::uint64_t at = tail_.fetch_add(1, std::memory_order_relaxed);
    Cell& cell = cells_[at & mask_];
    // The reservation guarantees that the cell is free, but the reader's store to `turn` may not be visible yet.
    while (cell.turn.load(std::memory_order_acquire) != at) {
    }
    cell.command = command;
    cell.turn.store(at + 1, std::memory_order_release);
  }

  bool poll(Command* out) noexcept {
    Cell& cell = cells_[head_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
    *out = cell.command;
    cell.turn.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    free_.fetch_add(1, std::memory_order_release);
    return true;
  }
  bool empty() const noexcept { return cells_[head_ & mask_].turn.load(std::memory_order_acquire) != head_ + 1; }

 private:
  struct Cell {
    std::atomic<std::uint64_t> turn;
    Command command;
  };
  std::unique_ptr<Cell[]> cells_;
  std::uint64_t mask_;
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  alignas(64) std::atomic<std::int64_t> free_;
  alignas(64) std::uint64_t head_ = 0;
};

}  // namespace weft::engine
