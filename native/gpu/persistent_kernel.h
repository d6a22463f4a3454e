// The persistent copy kernel, used while CUDA streams wait for messages. A waiting stream blocks the
// driver queue that it is in, and streams share few queues (8, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise), so
// copies of the awaited message could be queued behind it. Therefore a kernel is launched before the first stream
// waits; it makes the copies until no stream waits any more.
#pragma once

#include <condition_variable>
#include <mutex>

#include "native/gpu/kernels.h"

namespace weft::gpu {

// There is one persistent kernel per device, for all its workers. Without compiled kernels, or where launches block
// (CUDA_LAUNCH_BLOCKING), it only counts waiting streams.
class PersistentKernel {
 public:
  using Ticket = std::uint32_t;  // number of a job; 0: none

  // On failure returns null with `error` set. `kernels` may be null; otherwise it must outlive the persistent kernel.
  static std::unique_ptr<PersistentKernel> open(const Driver& driver, Context context, const Kernels* kernels,
                                                std::string* error);
  PersistentKernel(const PersistentKernel&) = delete;
  PersistentKernel& operator=(const PersistentKernel&) = delete;
  // No stream may be waiting when the persistent kernel is destroyed.
  ~PersistentKernel();

  // Callers call wait_begins() before they make a stream wait, and wait_ends() once it no longer waits.
  void wait_begins() noexcept;
  void wait_ends() noexcept;
  // Calls `free`, and holds off new waits meanwhile, because the driver frees memory only when all work is done.
  // Returns false without calling it if a stream waits.
  template <class Free>
  bool free_unless_waited(Free free) {
    {
      const std::lock_guard lock(mutex_);
      if (waiting_ != 0) return false;
      ++freeing_;
    }
    free();
    const std::lock_guard lock(mutex_);
    if (--freeing_ == 0) freed_.notify_all();
    return true;
  }

  // Callers hold this mutex while they launch a copy in any way, so that no copy is queued behind a stream that starts
  // to wait.
  std::mutex& mutex() noexcept { return mutex_; }
  // Whether copies must be submitted to the persistent kernel instead of a stream. The mutex must be held.
  bool takes_copies() const noexcept { return runs_; }
  // Copies bytes [begin, end) of the message that the table describes to or from `contiguous`. The table must stay in
  // memory until the job is done. The mutex must be held.
  Result submit(bool gathers, const PieceTable& table, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                Address contiguous, Ticket* out) noexcept;
  // Submits a copy of bytes that are contiguous on the device. The mutex must be held.
  Result submit(bool gathers, Address there, std::uint64_t bytes, Address contiguous, Ticket* out) noexcept;
  // The state of a job: kSuccess when it is done, kNotReady while it is in progress, otherwise an error.
  Result query(Ticket ticket) const noexcept;

 private:
  PersistentKernel(const Driver& driver, Context context, const Kernels* kernels)
      : driver_(driver), context_(context), kernels_(launches_block() ? nullptr : kernels) {}
  static bool launches_block() noexcept;
  bool make(std::string* error);
  bool done(Ticket ticket) const noexcept;
  Result await_slot() noexcept;
  PersistentJob* slot() noexcept { return &board_->jobs[next_ % kPersistentJobs]; }
  Result hand_over(PersistentJob* job, bool gathers, Ticket* out) noexcept;

  const Driver& driver_;
  const Context context_;
  const Kernels* const kernels_;
  std::mutex mutex_;
  std::condition_variable freed_;
  int waiting_ = 0, freeing_ = 0;
  bool runs_ = false;
  PersistentBoard* board_ = nullptr;
  Stream stream_ = nullptr;
  Event left_ = nullptr;  // recorded after the last launch of the kernel
  Ticket next_ = 1;
  std::uint32_t generation_ = 0;
};

}  // namespace weft::gpu
