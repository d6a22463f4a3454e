// A pool of blocks of one size that grows on demand up to a limit and reuses returned blocks. Not thread-safe: each
// engine has its own pools.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace weft::core {

class SlabPool {
 public:
  // `zeroed`: new blocks are zero.
  SlabPool(std::size_t block_bytes, std::size_t blocks_max, bool zeroed = true)
      : block_bytes_(block_bytes), blocks_max_(blocks_max), zeroed_(zeroed) {}
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;
  ~SlabPool() {
    for (void* block : free_) std::free(block);
  }

  // Returns a block: a new one, or one as it was given back. Null at the limit or when out of memory.
  void* take() noexcept {
    if (!free_.empty()) {
      void* block = free_.back();
      free_.pop_back();
      return block;
    }
    if (blocks_ == blocks_max_) return nullptr;
    void* block = zeroed_ ? std::calloc(1, block_bytes_) : std::malloc(block_bytes_);
    if (block == nullptr) return nullptr;
    // Reserves the list entry for the returned block now, so that give() never allocates.
    if (free_.capacity() <= blocks_) {
      try {
        free_.reserve(2 * blocks_ + 4);
      } catch (...) {
        std::free(block);
        return nullptr;
      }
    }
    ++blocks_;
    return block;
  }

  void give(void* block) noexcept {
    if (block != nullptr) free_.push_back(block);
  }

  std::size_t block_bytes() const noexcept { return block_bytes_; }
  std::size_t blocks_max() const noexcept { return blocks_max_; }
  std::size_t blocks_in_use() const noexcept { return blocks_ - free_.size(); }
  std::size_t bytes_held() const noexcept { return blocks_ * block_bytes_; }

 private:
  std::size_t block_bytes_;
  std::size_t blocks_max_;
  bool zeroed_;
  std::size_t blocks_ = 0;
  std::vector<void*> free_;
};

}  // namespace weft::core
