// A FIFO queue of indices of flows or peers. It does not allocate after reserve(). There is room for each index only
// once, so the caller keeps a flag that tells whether an index is queued.
#pragma once

#include <vector>

#include "native/core/types.h"

namespace weft::core {

class FlowQueue {
 public:
  // Allocates room for `count` indices; called when a flow or peer is opened, never for a segment.
  void reserve(std::size_t count) {
    std::size_t capacity = ring_.empty() ? 16 : ring_.size();
    while (capacity < count + 1) capacity *= 2;
    if (capacity == ring_.size()) return;
    std::vector<u32> larger(capacity);
    const std::size_t held = size();
    for (std::size_t i = 0; i < held; ++i) larger[i] = ring_[(head_ + i) & (ring_.size() - 1)];
    ring_.swap(larger);
    head_ = 0;
    tail_ = held;
  }
  bool empty() const noexcept { return head_ == tail_; }
  std::size_t size() const noexcept { return tail_ - head_; }
  u32 front() const noexcept { return ring_[head_ & (ring_.size() - 1)]; }
  u32 pop() noexcept { return ring_[head_++ & (ring_.size() - 1)]; }
  void push(u32 index) noexcept { ring_[tail_++ & (ring_.size() - 1)] = index; }
  // Removes the index of a flow or peer that is released, because the index may be reused.
  void remove(u32 index) noexcept {
    const std::size_t end = tail_;
    tail_ = head_;
    for (std::size_t i = head_; i != end; ++i) {
      const u32 each = ring_[i & (ring_.size() - 1)];
      if (each != index) push(each);
    }
  }

 private:
  std::vector<u32> ring_;
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace weft::core
