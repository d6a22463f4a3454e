// Runs the kernels of native/gpu on the host, by name. Threads are run one after the other, in reverse order, since a
// GPU guarantees no order.
#pragma once

#include <cstring>
#include <functional>

#include "native/gpu/jobs.h"
#include "native/gpu/persistent_kernel_device.cuh"
#include "native/gpu/pieces_device.cuh"
#include "native/gpu/reduce_device.cuh"

namespace weft::test {

struct HostKernel {
  const char* name;
  // Returns a function that runs the launch, with a copy of its parameters. The function must be called until it
  // returns true.
  std::function<bool()> (*prepare)(unsigned blocks, void** parameters);
};

template <class Job, class Share>
std::function<bool()> each_thread(unsigned blocks, void** parameters, Share share) {
  return [blocks, share, job = *static_cast<const Job*>(parameters[0])] {
    for (unsigned block = blocks; block-- != 0;) {
      for (unsigned thread = gpu::kBlockThreads; thread-- != 0;) share(job, block, thread);
    }
    return true;
  };
}

// Each call does one block's part of a job, so that the host can query the job's state in between.
inline std::function<bool()> prepare_persistent(unsigned blocks, void** parameters) {
  return [told = *static_cast<const gpu::PersistentLaunch*>(parameters[0]), block = blocks, blocks]() mutable {
    auto* const board = reinterpret_cast<gpu::PersistentBoard*>(told.board);
    const std::uint32_t last = __atomic_load_n(&board->leave, __ATOMIC_ACQUIRE);
    const bool leaves = static_cast<std::int32_t>(last - told.generation) >= 0;
    const gpu::PersistentJob& job = board->jobs[told.first % gpu::kPersistentJobs];
    if (__atomic_load_n(&job.number, __ATOMIC_ACQUIRE) != told.first || job.generation != told.generation)
      return leaves;
    --block;
    for (unsigned thread = gpu::kBlockThreads; thread-- != 0;) gpu::device::persistent_share(job, block, thread);
    __atomic_store_n(&board->done[block], told.first, __ATOMIC_RELEASE);
    if (block != 0) return false;
    block = blocks;
    told.first += told.first + 1 == 0 ? 2 : 1;
    return false;
  };
}

template <bool kGathers>
std::function<bool()> prepare_pieces(unsigned blocks, void** parameters) {
  return each_thread<gpu::PiecesJob>(
      blocks, parameters, [](const gpu::PiecesJob& job, unsigned block, unsigned thread) {
        constexpr unsigned kWarps = gpu::kBlockThreads / gpu::kWarpLanes;
        gpu::device::move_pieces<kGathers>(job, std::uint64_t{block} * kWarps + thread / gpu::kWarpLanes,
                                           thread % gpu::kWarpLanes);
      });
}

template <gpu::ElementType kType, gpu::Operation kOperation>
std::function<bool()> prepare_reduce(unsigned blocks, void** parameters) {
  return each_thread<gpu::ReduceJob>(blocks, parameters,
                                     [](const gpu::ReduceJob& job, unsigned block, unsigned thread) {
                                       gpu::device::reduce<kType, kOperation>(job, block, thread);
                                     });
}

// The kernel of a name; null if there is none.
inline const HostKernel* find_host_kernel(const char* name) {
#define WEFT_HOST_KERNEL(operation, type) \
  {"weft_reduce_" #type "_" #operation, prepare_reduce<gpu::ElementType::type, gpu::Operation::operation>},
#define WEFT_HOST_KERNELS(type, bytes) WEFT_REDUCE_OPERATIONS(WEFT_HOST_KERNEL, type)
  static constexpr HostKernel kAll[] = {{"weft_gather", prepare_pieces<true>},
                                        {"weft_scatter", prepare_pieces<false>},
                                        {"weft_persistent", prepare_persistent},
                                        WEFT_REDUCE_TYPES(WEFT_HOST_KERNELS)};
#undef WEFT_HOST_KERNELS
#undef WEFT_HOST_KERNEL
  for (const HostKernel& kernel : kAll) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace weft::test
