// One allocation, portable to all contexts.
// Frees nothing that is lent: its owner waits for copies before.
#include "native/gpu/pinned_pool.h"

namespace weft::gpu {

std::unique_ptr<PinnedPool> PinnedPool::open(const Driver& driver, Context context, std::size_t ring_bytes,
                                             std::size_t rings, std::string* error) {
  if (ring_bytes == 0 || rings == 0 || rings > SIZE_MAX / ring_bytes) {
    *error = "a pool of " + std::to_string(rings) + " rings of " + std::to_string(ring_bytes) + " bytes cannot be";
    return nullptr;
  }
  std::unique_ptr<PinnedPool> pool(new PinnedPool(driver, context, ring_bytes, rings));
  pool->free_.reserve(rings);
  const Current current(driver, context);
  if (current.result() != kSuccess) {
    *error = driver.say("cuCtxPushCurrent", current.result());
    return nullptr;
  }
  const Result result = driver.host_alloc(&pool->memory_, ring_bytes * rings, kHostAllocPortable);
  if (result != kSuccess) {
    pool->memory_ = nullptr;
    *error = driver.say("cuMemHostAlloc", result) + " (" + std::to_string(ring_bytes * rings) +
             " bytes of pinned memory: a smaller pool may do)";
    return nullptr;
  }
  for (std::size_t i = rings; i-- != 0;)
    pool->free_.push_back(static_cast<std::uint8_t*>(pool->memory_) + i * ring_bytes);
  return pool;
}

PinnedPool::~PinnedPool() {
  if (memory_ == nullptr) return;
  const Current current(driver_, context_);
  static_cast<void>(driver_.host_free(memory_));  // a context that is gone has freed it
}

std::uint8_t* PinnedPool::take() noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  std::uint8_t* const ring = free_.back();
  free_.pop_back();
  return ring;
}

void PinnedPool::give(std::uint8_t* ring) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(ring);  // reserved for all
}

std::size_t PinnedPool::lent() const noexcept {
  const std::lock_guard lock(mutex_);
  return rings_ - free_.size();
}

}  // namespace weft::gpu
