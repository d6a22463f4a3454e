// A queue of indices, each in it at most once, that never allocates after reserve().
// The flag that an index is in a queue lives with the caller's object.
#pragma once

#include <vector>

#include "native/core/types.h"

namespace weft::core {

class FlowQueue {
 public:
  // Room for `count` indices; called when a flow or peer is opened, never on the segment path.
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
  // Takes an index out whose owner goes away: the next owner of the number would be in the queue twice.
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
