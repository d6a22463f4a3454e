// Finds room by first fit, which is a search through a few hundred granules once per device message. Lent memory is
// never freed; its users return it after their copies.
#include "native/gpu/pinned_pool.h"

#include <algorithm>

namespace weft::gpu {

std::unique_ptr<PinnedPool> PinnedPool::open(const Driver& driver, Context context, std::size_t bytes,
                                             std::size_t granule_bytes, std::string* error) {
  if (granule_bytes == 0 || bytes == 0 || bytes % granule_bytes != 0) {
    *error = "a pool of " + std::to_string(bytes) + " bytes in granules of " + std::to_string(granule_bytes) +
             ": the size must be a positive multiple of the granule";
    return nullptr;
  }
  std::unique_ptr<PinnedPool> pool(new PinnedPool(driver, context, bytes, granule_bytes));
  const Current current(driver, context);
  if (current.result() != kSuccess) {
    *error = driver.say("cuCtxPushCurrent", current.result());
    return nullptr;
  }
  void* memory = nullptr;
  const Result result = driver.host_alloc(&memory, bytes, kHostAllocPortable);
  if (result != kSuccess) {
    *error = driver.say("cuMemHostAlloc", result) + " (" + std::to_string(bytes) +
             " bytes of pinned memory: try a smaller pool)";
    return nullptr;
  }
  pool->memory_ = static_cast<std::uint8_t*>(memory);
  return pool;
}

PinnedPool::~PinnedPool() {
  if (memory_ == nullptr) return;
  const Current current(driver_, context_);
  static_cast<void>(driver_.host_free(memory_));  // an error means that a destroyed context has freed it
}

std::uint8_t* PinnedPool::take(std::size_t bytes) noexcept {
  const std::size_t wanted = std::max<std::size_t>((bytes + granule_bytes_ - 1) / granule_bytes_, 1);
  const std::lock_guard lock(mutex_);
  for (std::size_t at = 0, free = 0; at < runs_.size();) {
    if (runs_[at] != 0) {
      at += runs_[at];
      free = 0;
      continue;
    }
    ++at;
    if (++free != wanted) continue;
    runs_[at - wanted] = static_cast<std::uint32_t>(wanted);
    lent_ += wanted;
    return memory_ + (at - wanted) * granule_bytes_;
  }
  return nullptr;
}

void PinnedPool::give(std::uint8_t* run) noexcept {
  const std::lock_guard lock(mutex_);
  std::uint32_t& granules = runs_[static_cast<std::size_t>(run - memory_) / granule_bytes_];
  lent_ -= granules;
  granules = 0;
}

std::size_t PinnedPool::lent_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return lent_ * granule_bytes_;
}

}  // namespace weft::gpu
