// Device code of the persistent kernel, the kernel that runs while streams wait. It copies pieces at the host's request
// until the host tells it to end. Its loop is in kernels.cu, as only a GPU can run it.
#pragma once

#include "native/gpu/pieces_device.cuh"

namespace weft::gpu::device {

// One lane's part of a copy job, which is divided among all blocks.
WEFT_DEVICE void persistent_share(const PersistentJob& job, u32 block, u32 thread) {
  constexpr u32 kWarps = kBlockThreads / kWarpLanes;
  for (u64 chunk = u64{block} * kWarps + thread / kWarpLanes; chunk < job.chunks; chunk += kPersistentBlocks * kWarps) {
    if (job.gathers != 0) {
      move_pieces<true>(job.pieces, chunk, thread % kWarpLanes);
    } else {
      move_pieces<false>(job.pieces, chunk, thread % kWarpLanes);
    }
  }
}

}  // namespace weft::gpu::device
