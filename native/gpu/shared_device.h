// What all workers of a device in this process share: its primary context, kernels, streams, and the persistent kernel.
// While a stream waits for a message, the driver loads no code and frees no memory, and creating a stream may block. So
// all of these are created before any stream can wait, and memory is freed later.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/kernel_image.h"
#include "native/gpu/persistent_kernel.h"
#include "native/gpu/pinned_pool.h"

namespace weft::gpu {

class SharedDevice {
 public:
  // Returns the existing object for this device, or a new one. `image`: the compiled kernels; null: none. On failure
  // returns null with `error` set.
  static std::shared_ptr<SharedDevice> open(const Driver& driver, int device, const void* image, std::string* error);
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;
  ~SharedDevice();

  Context context() const noexcept { return context_; }
  // Null if no kernels could be loaded; kernels_missing() says why.
  const Kernels* kernels() const noexcept { return kernels_.get(); }
  const std::string& kernels_missing() const noexcept { return kernels_missing_; }
  PersistentKernel& persistent_kernel() noexcept { return *persistent_kernel_; }
  // Memory of the device with random content, for other processes to try whether they can read it; 0: there is none,
  // and trial_missing() says why.
  static constexpr std::size_t kTrialBytes = 4096;
  Address trial_memory() const noexcept { return trial_memory_; }
  const std::array<std::uint64_t, 2>& trial_holds() const noexcept { return trial_holds_; }
  const std::string& trial_missing() const noexcept { return trial_missing_; }
  // A highest-priority stream for copies in one direction (`direction` 0: to the host, 1: to the device). Callers share
  // these streams, so none may put long work into them.
  Stream next_stream(std::size_t direction) noexcept { return streams_[direction][turn_[direction]++ % kStreams]; }
  // Takes an idle stream, to be given back idle or destroyed. On failure returns null, with the driver's error in
  // `result`.
  Stream take_stream(Result* result) noexcept;
  void give_stream(Stream stream) noexcept;
  // Returns a pool of pinned memory: a retired pool of this size if there is one, otherwise a new one as by
  // PinnedPool::open().
  std::unique_ptr<PinnedPool> pool(std::size_t bytes, std::size_t granule_bytes, std::string* error);
  // Frees this pool and those retired before. While a stream waits they are kept instead, and freed later or reused.
  void retire(std::unique_ptr<PinnedPool> pool) noexcept;

 private:
  SharedDevice(const Driver& driver, DeviceId device) : driver_(driver), device_(device) {}
  static constexpr std::size_t kStreams = 4;  // copy streams per direction
  // How many idle streams are created early, because creating one may block while a stream waits.
  static constexpr std::size_t kSpare = 32;
  bool make(const void* image, std::string* error);
  bool make_streams(std::string* error);
  void make_trial();

  const Driver& driver_;
  const DeviceId device_;
  Context context_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::string kernels_missing_;
  Address trial_memory_ = 0;
  std::array<std::uint64_t, 2> trial_holds_{};
  std::string trial_missing_;
  std::unique_ptr<PersistentKernel> persistent_kernel_;
  std::array<std::array<Stream, kStreams>, 2> streams_{};
  std::array<std::atomic<std::size_t>, 2> turn_{};
  std::mutex mutex_;
  std::vector<Stream> spare_;
  std::vector<std::unique_ptr<PinnedPool>> retired_;
};

}  // namespace weft::gpu
