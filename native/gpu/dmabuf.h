// Exports device memory as a dma-buf, through which a NIC that knows nothing about GPUs can read it.
#pragma once

#include "native/gpu/driver.h"

namespace weft::gpu {

struct DmaBuf {
  int descriptor = -1;       // must be closed by the caller; -1: the driver cannot export the memory
  std::uint64_t offset = 0;  // where the memory begins inside the dma-buf
};

// Exports the memory [address, address + bytes) of the current context.
DmaBuf export_dmabuf(const Driver& driver, Address address, std::uint64_t bytes) noexcept;

}  // namespace weft::gpu
