// Maps and unmaps the rings of a socket.
#include "native/datapath/xdp/ring.h"

#include <sys/mman.h>

namespace weft::datapath::xdp {

template <class Entry>
bool Ring<Entry>::map(int socket, std::int64_t page, const RingOffsets& offsets, std::uint32_t entries) noexcept {
  const std::size_t bytes = offsets.entries + entries * sizeof(Entry);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, page);
  if (memory == MAP_FAILED) return false;
  // A mapping keeps the socket open, so a forked child must not have it.
  ::madvise(memory, bytes, MADV_DONTFORK);
  memory_ = memory;
  bytes_ = bytes;
  auto* const base = static_cast<std::uint8_t*>(memory);
  producer_ = reinterpret_cast<std::uint32_t*>(base + offsets.producer);
  consumer_ = reinterpret_cast<std::uint32_t*>(base + offsets.consumer);
  flags_ = reinterpret_cast<std::uint32_t*>(base + offsets.flags);
  slots_ = reinterpret_cast<Entry*>(base + offsets.entries);
  mask_ = entries - 1;
  own_ = seen_ = 0;
  return true;
}

template <class Entry>
void Ring<Entry>::unmap() noexcept {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  memory_ = nullptr;
}

template class Ring<Descriptor>;
template class Ring<std::uint64_t>;

}  // namespace weft::datapath::xdp
