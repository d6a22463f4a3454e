// Exports whole pages of the host, as the driver wants it.
// A driver without open kernel modules exports none, which is no error: peer memory or staging is next.
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
