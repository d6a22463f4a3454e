// The packets on the arena's links, which have sizes and header bytes but no payload; and the pool of their headers.
#pragma once

#include <cstring>

#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::sim {

using core::i64;
using core::u16;
using core::u32;
using core::u64;
using core::u8;

struct Packet {
  u8* header = nullptr;  // from a HeaderPool; must be returned when the packet is dropped
  u32 from = 0, to = 0;  // host numbers
  u32 payload_bytes = 0;
  u16 header_bytes = 0;
  u8 path = 0;
  bool congestion_experienced = false;
  bool lost = false;  // the packet takes queue space and rate, but is not delivered

  i64 bytes() const noexcept { return i64{header_bytes} + payload_bytes; }
};

// Memory for headers, in blocks of two sizes: for data headers and short acknowledgments, and for long acknowledgments.
class HeaderPool {
 public:
  HeaderPool() : short_(kShortBytes, kBlocksMax), long_(wire::kControlBytesMax, kBlocksMax) {}

  // Copies a header. Returns null if the pool is exhausted; the packet is then dropped, as by a switch without memory.
  u8* copy_of(const u8* header, u16 bytes) noexcept {
    void* block = (bytes <= kShortBytes ? short_ : long_).take();
    if (block != nullptr) std::memcpy(block, header, bytes);
    return static_cast<u8*>(block);
  }
  void give(const Packet& packet) noexcept {
    (packet.header_bytes <= kShortBytes ? short_ : long_).give(packet.header);
  }
  std::size_t in_use() const noexcept { return short_.blocks_in_use() + long_.blocks_in_use(); }

 private:
  static constexpr std::size_t kShortBytes = 192;
  static constexpr std::size_t kBlocksMax = 1 << 20;
  core::SlabPool short_, long_;
};

}  // namespace weft::sim
