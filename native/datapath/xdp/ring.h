// The rings between this process and the kernel, each with one producer and one consumer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/datapath/xdp/kernel_abi.h"

namespace weft::datapath::xdp {

template <class Entry>
class Ring {
 public:
  Ring() = default;
  // Maps the ring of a socket. `page`: its offset for mmap(). Returns false with errno on failure.
  bool map(int socket, std::int64_t page, const RingOffsets& offsets, std::uint32_t entries) noexcept;
  void unmap() noexcept;

  std::uint32_t entries() const noexcept { return mask_ + 1; }
  bool kernel_sleeps() const noexcept { return (__atomic_load_n(flags_, __ATOMIC_RELAXED) & kRingNeedsWakeup) != 0; }

  // For the rings that this process fills. Entries are visible to the kernel after publish().
  bool has_room(std::uint32_t wanted) noexcept {
    if (entries() - (own_ - seen_) < wanted) seen_ = load(consumer_);
    return entries() - (own_ - seen_) >= wanted;
  }
  Entry& next() noexcept { return slots_[own_++ & mask_]; }
  void publish() noexcept { store(producer_, own_); }
  // Entries that the kernel has not taken yet.
  std::uint32_t queued() noexcept {
    seen_ = load(consumer_);
    return own_ - seen_;
  }

  // For the rings that the kernel fills. Entries go back to the kernel with release().
  std::uint32_t ready() noexcept {
    if (own_ == seen_) seen_ = load(producer_);
    return seen_ - own_;
  }
  const Entry& front() const noexcept { return slots_[own_ & mask_]; }
  void pop() noexcept { ++own_; }
  void release() noexcept { store(consumer_, own_); }

 private:
  static std::uint32_t load(std::uint32_t* index) noexcept { return __atomic_load_n(index, __ATOMIC_ACQUIRE); }
  static void store(std::uint32_t* index, std::uint32_t value) noexcept {
    __atomic_store_n(index, value, __ATOMIC_RELEASE);
  }

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t *producer_ = nullptr, *consumer_ = nullptr, *flags_ = nullptr;
  Entry* slots_ = nullptr;
  std::uint32_t mask_ = 0;
  std::uint32_t own_ = 0, seen_ = 0;  // this end's index, and the other end's when last read
};

}  // namespace weft::datapath::xdp
