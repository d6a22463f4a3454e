// The kernels' entry points: each thread computes its indices and does its part of the work, as defined in the headers.
// nvcc compiles this file into an image that the library contains (kernels.cmake).
#include "native/gpu/jobs.h"
#include "native/gpu/persistent_kernel_device.cuh"
#include "native/gpu/pieces_device.cuh"
#include "native/gpu/reduce_device.cuh"

namespace device = weft::gpu::device;

#define WEFT_PIECES_KERNEL(name, gathers)                                                                 \
  extern "C" __global__ void __launch_bounds__(weft::gpu::kBlockThreads) name(weft::gpu::PiecesJob job) { \
    constexpr unsigned kWarps = weft::gpu::kBlockThreads / weft::gpu::kWarpLanes;                         \
    const device::u64 warp = device::u64{blockIdx.x} * kWarps + threadIdx.x / weft::gpu::kWarpLanes;      \
    device::move_pieces<gathers>(job, warp, threadIdx.x % weft::gpu::kWarpLanes);                         \
  }
WEFT_PIECES_KERNEL(weft_gather, true)
WEFT_PIECES_KERNEL(weft_scatter, false)

// The persistent kernel. One thread of each block polls pinned memory across the bus until there is a job or the launch
// must end. Memory fences are needed before and after the copies: the block's caches may hold data of an earlier job at
// the same addresses, and the host relies on the number in `done`.
extern "C" __global__ void __launch_bounds__(weft::gpu::kBlockThreads)
    weft_persistent(weft::gpu::PersistentLaunch told) {
  static_assert(sizeof(weft::gpu::PersistentJob) % sizeof(device::u64) == 0);
  constexpr unsigned kJobWords = sizeof(weft::gpu::PersistentJob) / sizeof(device::u64);
  __shared__ device::u64 words[kJobWords];
  __shared__ int found;
  auto* const board = reinterpret_cast<weft::gpu::PersistentBoard*>(told.board);
  for (unsigned number = told.first;; number += number + 1 == 0 ? 2 : 1) {  // jobs are never numbered 0
    volatile weft::gpu::PersistentJob* const job = &board->jobs[number % weft::gpu::kPersistentJobs];
    if (threadIdx.x == 0) {
      for (;;) {
        // `leave` is read before the job, because no job is submitted after `leave` is set.
        const unsigned last = *const_cast<volatile unsigned*>(&board->leave);
        const bool leaves = static_cast<int>(last - told.generation) >= 0;
        __threadfence_system();
        found = job->number == number;
        __threadfence_system();
        // A job of a later launch is left to the blocks of that launch.
        found = found && job->generation == told.generation;
        if (found || leaves) break;
        __nanosleep(200);
      }
    }
    __syncthreads();
    if (!found) return;
    __threadfence_system();
    if (threadIdx.x < kJobWords) words[threadIdx.x] = reinterpret_cast<volatile device::u64*>(job)[threadIdx.x];
    __syncthreads();
    device::persistent_share(*reinterpret_cast<const weft::gpu::PersistentJob*>(words), blockIdx.x, threadIdx.x);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *const_cast<volatile unsigned*>(&board->done[blockIdx.x]) = number;
  }
}

#define WEFT_REDUCE_KERNEL(operation, type)                                                                      \
  extern "C" __global__ void __launch_bounds__(weft::gpu::kBlockThreads)                                         \
      weft_reduce_##type##_##operation(weft::gpu::ReduceJob job) {                                               \
    device::reduce<weft::gpu::ElementType::type, weft::gpu::Operation::operation>(job, blockIdx.x, threadIdx.x); \
  }
#define WEFT_REDUCE_KERNELS(type, bytes) WEFT_REDUCE_OPERATIONS(WEFT_REDUCE_KERNEL, type)
WEFT_REDUCE_TYPES(WEFT_REDUCE_KERNELS)
