// A fixed-size pool of pinned host memory, lent in runs of granules, for the bounce buffers of device memory. Memory is
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
  // The memory is usable in every context; null with `error`. `context`: any, for the pinning call. `bytes`: a multiple
  // of the granule.
  static std::unique_ptr<PinnedPool> open(const Driver& driver, Context context, std::size_t bytes,
                                          std::size_t granule_bytes, std::string* error);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Everything lent must have been returned.
  ~PinnedPool();

  // Thread-safe. Returns that many contiguous bytes, or null if none are free now (or never, if more than bytes()).
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
  std::vector<std::uint32_t> runs_;  // length of the run lent from this granule on; 0: free, or inside such a run
  std::size_t lent_ = 0;             // in granules
};

}  // namespace weft::gpu
