// A FIFO queue of indices of flows or peers. It does not allocate after reserve(). There is room for each index only
// once, so the caller keeps a flag that tells whether an index is queued.
#pragma once

#include <memory>
#include <utility>

#include "native/core/types.h"

namespace weft::core {

class FlowQueue {
 public:
  FlowQueue() = default;
  FlowQueue(const FlowQueue&) = delete;
  FlowQueue& operator=(const FlowQueue&) = delete;

  // Allocates room for `count` indices; called when a flow or peer is opened, never for a segment.
  void reserve(std::size_t count) {
    std::size_t capacity = mask_ + 1u;
    while (capacity < count + 1) capacity *= 2;
    if (capacity == mask_ + 1u) return;
    auto larger = std::make_unique<u32[]>(capacity);
    const u32 held = static_cast<u32>(size());
    for (u32 i = 0; i < held; ++i) larger[i] = at(head_ + i);
    many_ = std::move(larger);
    mask_ = static_cast<u32>(capacity - 1);
    head_ = 0;
    tail_ = held;
  }
  bool empty() const noexcept { return head_ == tail_; }
  std::size_t size() const noexcept { return tail_ - head_; }
  u32 front() const noexcept { return at(head_); }
  u32 pop() noexcept { return at(head_++); }
  void push(u32 index) noexcept { (many_ == nullptr ? few_ : many_.get())[tail_++ & mask_] = index; }
  // Removes the index of a flow or peer that is released, because the index may be reused.
  void remove(u32 index) noexcept {
    const u32 end = tail_;
    tail_ = head_;
    for (u32 i = head_; i != end; ++i) {
      const u32 each = at(i);
      if (each != index) push(each);
    }
  }

 private:
  u32 at(u32 place) const noexcept { return (many_ == nullptr ? few_ : many_.get())[place & mask_]; }

  // The ring is `few_`, which costs no memory of its own, until more room is reserved.
  std::unique_ptr<u32[]> many_;
  u32 few_[4] = {};
  u32 mask_ = 3;
  u32 head_ = 0, tail_ = 0;
};

}  // namespace weft::core
