// Maps the memory for frames.
#include "native/datapath/xdp/umem.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace weft::datapath::xdp {

bool Umem::open(std::size_t chunks, std::string* error) {
  const std::size_t bytes = chunks * kChunkBytes;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    *error = "cannot map " + std::to_string(bytes >> 20) + " MiB for frames: " + std::strerror(errno);
    return false;
  }
  ::madvise(memory, bytes, MADV_DONTFORK);  // else a fork would copy the pages, which the kernel has pinned
  memory_ = static_cast<std::uint8_t*>(memory);
  bytes_ = bytes;
  free_.reserve(chunks);
  for (std::size_t i = chunks; i > 0; --i) free_.push_back((i - 1) * kChunkBytes);
  return true;
}

Umem::~Umem() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

}  // namespace weft::datapath::xdp
