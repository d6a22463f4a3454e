// Pinned host memory of one stated size, cut into rings that are lent out: what device memory passes through.
// Knows no stream and no message; pins once, at the beginning, for pinning synchronises devices.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/gpu/driver.h"

namespace weft::gpu {

class PinnedPool {
 public:
  // Of `rings` times `ring_bytes`, usable by every context; null with `error`. `context`: any, to pin by.
  static std::unique_ptr<PinnedPool> open(const Driver& driver, Context context, std::size_t ring_bytes,
                                          std::size_t rings, std::string* error);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Every ring must be back.
  ~PinnedPool();

  // Any thread. Null: all are lent; ask again when one has come back.
  std::uint8_t* take() noexcept;
  void give(std::uint8_t* ring) noexcept;
  std::size_t ring_bytes() const noexcept { return ring_bytes_; }
  std::size_t rings() const noexcept { return rings_; }
  std::size_t lent() const noexcept;

 private:
  PinnedPool(const Driver& driver, Context context, std::size_t ring_bytes, std::size_t rings)
      : driver_(driver), context_(context), ring_bytes_(ring_bytes), rings_(rings) {}

  const Driver& driver_;
  const Context context_;
  const std::size_t ring_bytes_, rings_;
  void* memory_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<std::uint8_t*> free_;  // the last that came back is warm: it goes first
};

}  // namespace weft::gpu
