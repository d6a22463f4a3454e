// A ring buffer of trace records: one thread writes to it, and the trace's writing thread reads from it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace weft::engine {

class TraceRing {
 public:
  explicit TraceRing(std::size_t bytes)
      : memory_(std::make_unique<std::byte[]>(bytes)), mask_(bytes - 1) {}  // `bytes`: a power of two

  // Adds a record. False: the ring has no room, and the record is dropped.
  bool put(const void* record, std::size_t bytes) noexcept {
    const std::uint64_t at = put_.load(std::memory_order_relaxed);
    if (at + bytes - taken_.load(std::memory_order_acquire) > mask_ + 1) return false;
    const std::size_t offset = at & mask_, first = std::min(bytes, mask_ + 1 - offset);
    std::memcpy(memory_.get() + offset, record, first);
    std::memcpy(memory_.get(), static_cast<const std::byte*>(record) + first, bytes - first);
    put_.store(at + bytes, std::memory_order_release);
    records_.store(records_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return true;
  }
  // Whether the record that was put last, of `bytes` bytes, made the ring more than half full.
  bool passed_half(std::size_t bytes) const noexcept {
    const std::uint64_t held = put_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_relaxed);
    return held > mask_ / 2 && held - bytes <= mask_ / 2;
  }
  // Appends all records to `out`, which has room for size() more bytes.
  void take(std::vector<std::byte>* out) noexcept {
    const std::uint64_t from = taken_.load(std::memory_order_relaxed);
    const auto bytes = static_cast<std::size_t>(put_.load(std::memory_order_acquire) - from);
    const std::size_t offset = from & mask_, first = std::min(bytes, mask_ + 1 - offset);
    out->insert(out->end(), memory_.get() + offset, memory_.get() + offset + first);
    out->insert(out->end(), memory_.get(), memory_.get() + bytes - first);
    taken_.store(from + bytes, std::memory_order_release);
  }
  std::size_t size() const noexcept { return mask_ + 1; }
  // Number of records put so far. Threads share no counter, because each would wait for the other's cache line.
  std::int64_t records() const noexcept { return records_.load(std::memory_order_relaxed); }

  // Whether a thread writes to the ring. A ring whose thread has ended is given to the next new thread.
  std::atomic<bool> in_use{false};

 private:
  const std::unique_ptr<std::byte[]> memory_;
  const std::size_t mask_;
  alignas(64) std::atomic<std::uint64_t> put_{0};
  std::atomic<std::int64_t> records_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
};

}  // namespace weft::engine
