// The kernels by name: each thread works out who it is and does its share, as the headers say.
// Compiled by nvcc alone, into an image that the library carries (kernels.cmake); decides nothing itself.
#include "native/gpu/jobs.h"
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

#define WEFT_REDUCE_KERNEL(operation, type)                                                                      \
  extern "C" __global__ void __launch_bounds__(weft::gpu::kBlockThreads)                                         \
      weft_reduce_##type##_##operation(weft::gpu::ReduceJob job) {                                               \
    device::reduce<weft::gpu::ElementType::type, weft::gpu::Operation::operation>(job, blockIdx.x, threadIdx.x); \
  }
#define WEFT_REDUCE_KERNELS(type, bytes) WEFT_REDUCE_OPERATIONS(WEFT_REDUCE_KERNEL, type)
WEFT_REDUCE_TYPES(WEFT_REDUCE_KERNELS)
