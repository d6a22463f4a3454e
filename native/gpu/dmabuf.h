// Exports device memory as a dma-buf, by which a NIC without knowledge of GPUs can read it.
#pragma once

#include "native/gpu/driver.h"

namespace weft::gpu {

struct DmaBuf {
  int descriptor = -1;       // the caller must close it; -1: the driver exports none
  std::uint64_t offset = 0;  // where the memory begins in the dma-buf
};

// Exports [address, address + bytes) of the current context.
DmaBuf export_dmabuf(const Driver& driver, Address address, std::uint64_t bytes) noexcept;

}  // namespace weft::gpu
