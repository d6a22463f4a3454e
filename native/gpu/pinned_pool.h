// A fixed-size pool of pinned host memory for the bounce buffers of device memory. It lends runs of granules. Memory is
// pinned once at the start, because pinning synchronises devices.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/gpu/driver.h"

namespace weft::gpu {

class PinnedPool {
 public:
  // Creates a pool whose memory is usable in every context. `context`: any context, for the call that pins the memory.
  // `bytes`: a multiple of the granule. On failure returns null with `error` set.
  static std::unique_ptr<PinnedPool> open(const Driver& driver, Context context, std::size_t bytes,
                                          std::size_t granule_bytes, std::string* error);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // All lent memory must have been returned before.
  ~PinnedPool();

  // Thread-safe. Lends `bytes` contiguous bytes. Returns null if they are not free now, or if the pool is smaller than
  // that.
  std::uint8_t* take(std::size_t bytes) noexcept;
  void give(std::uint8_t* run) noexcept;
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t granule_bytes() const noexcept { return granule_bytes_; }
  std::size_t lent_bytes() const noexcept;

 private:
  PinnedPool(const Driver& driver, Context context, std::size_t bytes, std::size_t granule_bytes)
      : driver_(driver),
        context_(context),
        bytes_(bytes),
        granule_bytes_(granule_bytes),
        runs_(bytes / granule_bytes) {}

  const Driver& driver_;
  const Context context_;
  const std::size_t bytes_, granule_bytes_;
  std::uint8_t* memory_ = nullptr;
  mutable std::mutex mutex_;
  // For each granule: the length of the lent run that begins with it; 0: the granule is free, or not the first of a
  // run.
  std::vector<std::uint32_t> runs_;
  std::size_t lent_ = 0;  // number of granules that are lent
};

}  // namespace weft::gpu
