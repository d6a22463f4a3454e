// The memory that an engine shares with the kernel for the frames of all its AF_XDP sockets, in chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::datapath::xdp {

inline constexpr std::size_t kChunkBytes = 4096;  // the most that the kernel takes with pages of 4 KiB
// The kernel leaves this much of a received chunk to XDP programs (XDP_PACKET_HEADROOM).
inline constexpr std::size_t kHeadroomBytes = 256;

class Umem {
 public:
  ~Umem();
  Umem() = default;
  Umem(const Umem&) = delete;
  Umem& operator=(const Umem&) = delete;

  bool open(std::size_t chunks, std::string* error);
  std::uint8_t* at(std::uint64_t address) const noexcept { return memory_ + address; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Whether a packet of this size at this address lies within the memory, and in one chunk.
  bool holds(std::uint64_t address, std::size_t bytes) const noexcept {
    return address < bytes_ && address % kChunkBytes + bytes <= kChunkBytes;
  }

  // Chunks that neither the kernel nor a ring has, by address.
  std::size_t free_chunks() const noexcept { return free_.size(); }
  std::uint64_t take() noexcept {
    const std::uint64_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void give_back(std::uint64_t address) noexcept { free_.push_back(address & ~std::uint64_t{kChunkBytes - 1}); }

 private:
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> free_;  // reserves room for all, so that it never allocates
};

}  // namespace weft::datapath::xdp
