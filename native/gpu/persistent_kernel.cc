// The host writes jobs into slots of pinned memory, in the order of their numbers, and every block of the kernel works
// on every job. If the kernel cannot be launched, copies use streams as usual, which works unless a copy is queued
// behind a waiting stream.
#include "native/gpu/persistent_kernel.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace weft::gpu {
namespace {

constexpr std::uint64_t kShareBytesMin = 1 << 10, kShareBytesMax = 32 << 10;
constexpr std::uint64_t kPersistentWarps = kPersistentBlocks * kBlockThreads / kWarpLanes;

}  // namespace

std::unique_ptr<PersistentKernel> PersistentKernel::open(const Driver& driver, Context context, const Kernels* kernels,
                                                         std::string* error) {
  std::unique_ptr<PersistentKernel> kernel(new PersistentKernel(driver, context, kernels));
  return kernel->kernels_ == nullptr || kernel->make(error) ? std::move(kernel) : nullptr;
}

// With CUDA_LAUNCH_BLOCKING, a launch waits until the kernel ends. The persistent kernel only ends when the launching
// thread tells it to, so it cannot be used.
bool PersistentKernel::launches_block() noexcept {
  const char* const set = std::getenv("CUDA_LAUNCH_BLOCKING");
  return set != nullptr && std::strcmp(set, "") != 0 && std::strcmp(set, "0") != 0;
}

bool PersistentKernel::make(std::string* error) {
  const Current current(driver_, context_);
  Result result = current.result();
  const char* called = "cuCtxPushCurrent";
  void* memory = nullptr;
  int least = 0, greatest = 0;
  if (result == kSuccess)
    result = driver_.host_alloc(&memory, sizeof(PersistentBoard), kHostAllocPortable), called = "cuMemHostAlloc";
  if (result == kSuccess) {
    std::memset(memory, 0, sizeof(PersistentBoard));
    board_ = static_cast<PersistentBoard*>(memory);
    result = driver_.priorities(&least, &greatest), called = "cuCtxGetStreamPriorityRange";
  }
  if (result == kSuccess)
    result = driver_.stream_create_with(&stream_, kNonBlocking, greatest), called = "cuStreamCreateWithPriority";
  if (result == kSuccess) result = driver_.event_create(&left_, kDisableTiming), called = "cuEventCreate";
  if (result != kSuccess) *error = driver_.say(called, result);
  return result == kSuccess;
}

PersistentKernel::~PersistentKernel() {
  const Current current(driver_, context_);
  // Errors are ignored, because a destroyed context has freed these objects already.
  if (left_ != nullptr) static_cast<void>(driver_.event_destroy(left_));
  if (stream_ != nullptr) static_cast<void>(driver_.stream_destroy(stream_));
  if (board_ != nullptr) static_cast<void>(driver_.host_free(board_));  // this call waits until the kernel has ended
}

void PersistentKernel::wait_begins() noexcept {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return freeing_ == 0; });
  if (waiting_++ != 0 || kernels_ == nullptr) return;
  const Current current(driver_, context_);
  if (current.result() != kSuccess) return;
  const PersistentLaunch job{reinterpret_cast<std::uintptr_t>(board_), next_, ++generation_};
  if (kernels_->start_persistent(job, stream_) != kSuccess) return;
  runs_ = driver_.event_record(left_, stream_) == kSuccess;
  if (!runs_) __atomic_store_n(&board_->leave, generation_, __ATOMIC_RELEASE);
}

void PersistentKernel::wait_ends() noexcept {
  const std::lock_guard lock(mutex_);
  if (--waiting_ != 0 || !runs_) return;
  runs_ = false;
  __atomic_store_n(&board_->leave, generation_, __ATOMIC_RELEASE);  // the kernel ends after all jobs submitted so far
}

bool PersistentKernel::done(Ticket ticket) const noexcept {
  return std::all_of(std::begin(board_->done), std::end(board_->done), [&](const std::uint32_t& last) {
    return static_cast<std::int32_t>(__atomic_load_n(&last, __ATOMIC_ACQUIRE) - ticket) >= 0;
  });
}

Result PersistentKernel::query(Ticket ticket) const noexcept {
  if (done(ticket)) return kSuccess;
  const Result result = driver_.event_query(left_);
  if (result != kSuccess) return result;
  // If the kernel has ended, an unfinished job will never be done.
  return done(ticket) ? kSuccess : kLaunchFailed;
}

// Waits until the previous job in the next slot is done. That job is one of the oldest, so there is rarely a wait.
Result PersistentKernel::await_slot() noexcept {
  const Ticket last = next_ - kPersistentJobs;
  for (Result result = kNotReady;; std::this_thread::yield()) {
    if (slot()->number == 0 || (result = query(last)) == kSuccess) return kSuccess;
    if (result != kNotReady) return result;
  }
}

Result PersistentKernel::hand_over(PersistentJob* job, bool gathers, Ticket* out) noexcept {
  PiecesJob& pieces = job->pieces;
  const std::uint64_t bytes = pieces.end_bytes - pieces.begin_bytes;
  const std::uint64_t share = (bytes / kPersistentWarps + kLineBytes - 1) / kLineBytes * kLineBytes;
  pieces.chunk_bytes = std::clamp(share, kShareBytesMin, kShareBytesMax);
  job->chunks = (bytes + pieces.contiguous % kLineBytes + pieces.chunk_bytes - 1) / pieces.chunk_bytes;
  job->gathers = gathers ? 1 : 0;
  job->generation = generation_;
  __atomic_store_n(&job->number, next_, __ATOMIC_RELEASE);
  *out = next_;
  if (++next_ == 0) ++next_;
  return kSuccess;
}

Result PersistentKernel::submit(bool gathers, const PieceTable& table, std::uint64_t begin_bytes,
                                std::uint64_t end_bytes, Address contiguous, Ticket* out) noexcept {
  if (const Result result = await_slot(); result != kSuccess) return result;
  slot()->pieces = {table.pieces, table.count, begin_bytes, end_bytes, contiguous, 0};
  return hand_over(slot(), gathers, out);
}

Result PersistentKernel::submit(bool gathers, Address there, std::uint64_t bytes, Address contiguous,
                                Ticket* out) noexcept {
  if (const Result result = await_slot(); result != kSuccess) return result;
  slot()->only = {there, bytes, 0};
  slot()->pieces = {reinterpret_cast<std::uintptr_t>(&slot()->only), 1, 0, bytes, contiguous, 0};
  return hand_over(slot(), gathers, out);
}

}  // namespace weft::gpu
