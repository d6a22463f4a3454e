// Exports whole host pages, as the driver requires. Drivers without open kernel modules cannot export memory; the
// module nvidia_peermem or bounce buffers are then used.
#include "native/gpu/dmabuf.h"

#include <unistd.h>

namespace weft::gpu {
namespace {

constexpr int kDmaBufDescriptor = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

}  // namespace

DmaBuf export_dmabuf(const Driver& driver, Address address, std::uint64_t bytes) noexcept {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const Address begin = address / page * page, end = (address + bytes + page - 1) / page * page;
  DmaBuf made;
  if (driver.address_range_handle(&made.descriptor, begin, end - begin, kDmaBufDescriptor, 0) != kSuccess) return {};
  made.offset = address - begin;
  return made;
}

}  // namespace weft::gpu
