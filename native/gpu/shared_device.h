// What all the workers of a device in this process have in common: its primary context, kernels, streams, and the
// attendant. While a stream waits for a message the driver loads no code, makes no streams now and then, and frees no
// memory: so these are made before any can wait, and memory is freed later.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/attendant.h"
#include "native/gpu/kernel_image.h"
#include "native/gpu/pinned_pool.h"

namespace weft::gpu {

class SharedDevice {
 public:
  // The one of this device that others have, or a new one. `image`: of the kernels, null: there are none. Null with
  // `error`.
  static std::shared_ptr<SharedDevice> open(const Driver& driver, int device, const void* image, std::string* error);
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;
  ~SharedDevice();

  Context context() const noexcept { return context_; }
  // Null where there are none: `kernels_missing` says why.
  const Kernels* kernels() const noexcept { return kernels_.get(); }
  const std::string& kernels_missing() const noexcept { return kernels_missing_; }
  Attendant& attendant() noexcept { return *attendant_; }
  // One for copies, of the highest priority: callers share those of a way (0, 1), and none may be long in one.
  Stream next_stream(std::size_t way) noexcept { return streams_[way][turn_[way]++ % kStreams]; }
  // One with nothing in it, to be given back so, or destroyed. Null with what the driver said.
  Stream take_stream(Result* result) noexcept;
  void give_stream(Stream stream) noexcept;
  // Pinned memory: as PinnedPool::open, or what was retired and not freed.
  std::unique_ptr<PinnedPool> pool(std::size_t bytes, std::size_t granule_bytes, std::string* error);
  // Frees the pool, and those of before, unless a stream waits; then later, or never, if another wants it first.
  void retire(std::unique_ptr<PinnedPool> pool) noexcept;

 private:
  SharedDevice(const Driver& driver, DeviceId device) : driver_(driver), device_(device) {}
  static constexpr std::size_t kStreams = 4;  // each way
  static constexpr std::size_t kSpare = 32;   // more, and making one may wait for those who wait
  bool make(const void* image, std::string* error);
  bool make_streams(std::string* error);

  const Driver& driver_;
  const DeviceId device_;
  Context context_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::string kernels_missing_;
  std::unique_ptr<Attendant> attendant_;
  std::array<std::array<Stream, kStreams>, 2> streams_{};
  std::array<std::atomic<std::size_t>, 2> turn_{};
  std::mutex mutex_;
  std::vector<Stream> spare_;
  std::vector<std::unique_ptr<PinnedPool>> retired_;
};

}  // namespace weft::gpu
