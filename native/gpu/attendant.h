// Copies that no queue holds up. A stream that waits for a message keeps the driver's queue that it lies in, and
// streams share few queues (8, as long as CUDA_DEVICE_MAX_CONNECTIONS says nothing else), so the very copies of that
// message may be put behind it. Therefore a kernel is launched before the first stream waits, and copies by itself
// until none does.
#pragma once

#include <condition_variable>
#include <mutex>

#include "native/gpu/kernels.h"

namespace weft::gpu {

// Of a device, for all its workers. Without kernels, and where launches block (CUDA_LAUNCH_BLOCKING), it counts those
// who wait, and that is all.
class Attendant {
 public:
  using Ticket = std::uint32_t;  // of a job; 0: of none

  // Null with `error`. `kernels` may be null, and otherwise outlives it.
  static std::unique_ptr<Attendant> open(const Driver& driver, Context context, const Kernels* kernels,
                                         std::string* error);
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;
  // Nobody waits any more.
  ~Attendant();

  // Before a stream is told to wait, and when it need not wait any longer, or never will.
  void wait_begins() noexcept;
  void wait_ends() noexcept;
  // Calls `free` unless a stream waits, and lets none begin meanwhile: the driver frees when all work is done.
  // False: one does.
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

  // Held while a copy is launched, by whatever means, so that none comes behind a stream that begins to wait.
  std::mutex& mutex() noexcept { return mutex_; }
  // Under the mutex: whether copies are to be submitted here.
  bool attends() const noexcept { return attends_; }
  // Under the mutex: bytes [begin, end) of the pieces, to `contiguous` or from there. The table stays until it is done.
  Result submit(bool gathers, const PieceTable& table, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                Address contiguous, Ticket* out) noexcept;
  // Bytes that lie together on the device.
  Result submit(bool gathers, Address there, std::uint64_t bytes, Address contiguous, Ticket* out) noexcept;
  // As of an event: kNotReady while it is under way.
  Result query(Ticket ticket) const noexcept;

 private:
  Attendant(const Driver& driver, Context context, const Kernels* kernels)
      : driver_(driver), context_(context), kernels_(launches_block() ? nullptr : kernels) {}
  static bool launches_block() noexcept;
  bool make(std::string* error);
  bool done(Ticket ticket) const noexcept;
  Result await_slot() noexcept;
  AttendedJob* slot() noexcept { return &board_->jobs[next_ % kAttendedJobs]; }
  Result hand_over(AttendedJob* job, bool gathers, Ticket* out) noexcept;

  const Driver& driver_;
  const Context context_;
  const Kernels* const kernels_;
  std::mutex mutex_;
  std::condition_variable freed_;
  int waiting_ = 0, freeing_ = 0;
  bool attends_ = false;
  AttendantBoard* board_ = nullptr;
  Stream stream_ = nullptr;
  Event left_ = nullptr;  // behind the last launch
  Ticket next_ = 1;
  std::uint32_t generation_ = 0;
};

}  // namespace weft::gpu
