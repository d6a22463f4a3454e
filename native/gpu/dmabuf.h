// The dma-buf of memory of a device, by which a NIC that knows nothing of GPUs reads it.
#pragma once

#include "native/gpu/driver.h"

namespace weft::gpu {

struct DmaBuf {
  int descriptor = -1;       // the caller's, who closes it; -1: the driver exports none
  std::uint64_t offset = 0;  // where in it the memory begins
};

// Of [address, address + bytes), in the context that is current.
DmaBuf export_dmabuf(const Driver& driver, Address address, std::uint64_t bytes) noexcept;

}  // namespace weft::gpu
