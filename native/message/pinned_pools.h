// The pinned memory for messages of a device: a pool of the configured size, and pools that were added later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/gpu/shared_device.h"

namespace weft::message {

// A contiguous range of pinned memory, and the pool to which it belongs.
struct PinnedRun {
  gpu::PinnedPool* pool = nullptr;
  std::uint8_t* begin = nullptr;
};

// The pools of pinned memory of a device. Not thread-safe, except that give() may be called from any thread.
class PinnedPools {
 public:
  void add(std::unique_ptr<gpu::PinnedPool> pool) { pools_.push_back(std::move(pool)); }
  // Takes contiguous memory from the first pool that has enough; `begin` is null if none has.
  PinnedRun take(std::size_t bytes) const noexcept {
    for (const auto& pool : pools_) {
      if (std::uint8_t* const run = pool->take(bytes)) return {pool.get(), run};
    }
    return {};
  }
  static void give(const PinnedRun& run) noexcept { run.pool->give(run.begin); }
  std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (const auto& pool : pools_) sum += pool->bytes();
    return sum;
  }
  std::size_t lent_bytes() const noexcept {
    std::size_t sum = 0;
    for (const auto& pool : pools_) sum += pool->lent_bytes();
    return sum;
  }
  // Closes the pools. All memory must have been given back.
  void retire(gpu::SharedDevice* device) noexcept {
    for (auto& pool : pools_) device->retire(std::move(pool));
    pools_.clear();
  }

 private:
  std::vector<std::unique_ptr<gpu::PinnedPool>> pools_;
};

}  // namespace weft::message
