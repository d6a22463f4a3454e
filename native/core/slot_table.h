// A table of objects by index. An index is reserved before its object exists, so that it can be sent to a peer, and is
// reused after its release.
#pragma once

#include <memory>
#include <vector>

#include "native/core/status.h"
#include "native/core/types.h"

namespace weft::core {

template <class T>
class SlotTable {
 public:
  static constexpr u32 kIndexMax = 1u << 20;

  // Reserves an index; out_of_memory if kIndexMax are in use. May throw std::bad_alloc; then nothing is reserved.
  Status reserve(u32* index) {
    if (free_.empty()) {
      const std::size_t count = objects_.size();
      if (count >= kIndexMax) return Status::out_of_memory;
      if (free_.capacity() <= count) free_.reserve(2 * count + 4);  // so that release() never allocates
      if (reserved_.capacity() <= count) reserved_.reserve(2 * count + 16);
      objects_.emplace_back();
      reserved_.push_back(0);
      free_.push_back(static_cast<u32>(count));
    }
    *index = free_.back();
    free_.pop_back();
    reserved_[*index] = 1;
    return Status::ok;
  }
  bool is_reserved(u32 index) const noexcept { return index < objects_.size() && reserved_[index] != 0; }
  // Whether the index is reserved but has no object yet.
  bool awaits(u32 index) const noexcept { return is_reserved(index) && objects_[index] == nullptr; }
  void put(u32 index, std::unique_ptr<T> object) noexcept { objects_[index] = std::move(object); }
  void destroy(u32 index) noexcept { objects_[index].reset(); }
  void release(u32 index) noexcept {
    destroy(index);
    reserved_[index] = 0;
    free_.push_back(index);
  }
  void clear() noexcept { objects_.clear(); }

  T* get(u32 index) const noexcept { return index < objects_.size() ? objects_[index].get() : nullptr; }
  T& operator[](u32 index) const noexcept { return *objects_[index]; }
  void prefetch() const noexcept { __builtin_prefetch(objects_.data()); }
  u32 size() const noexcept { return static_cast<u32>(objects_.size()); }  // all indices are smaller

 private:
  std::vector<std::unique_ptr<T>> objects_;
  std::vector<u8> reserved_;
  std::vector<u32> free_;
};

}  // namespace weft::core
