// Packets of the arena's links (sizes and header bytes, no payload), and the pool of their headers.
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
  u8* header = nullptr;  // from a HeaderPool; whoever drops the packet must return it
  u32 from = 0, to = 0;  // hosts
  u32 payload_bytes = 0;
  u16 header_bytes = 0;
  u8 path = 0;
  bool congestion_experienced = false;
  bool lost = false;  // it uses the queue and the wire but is not received

  i64 bytes() const noexcept { return i64{header_bytes} + payload_bytes; }
};

// Two block sizes: one for data headers and short acknowledgments, one for long acknowledgments.
class HeaderPool {
 public:
  HeaderPool() : short_(kShortBytes, kBlocksMax), long_(wire::kControlBytesMax, kBlocksMax) {}

  // Null at the cap: the packet is then dropped, as by a switch without memory.
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
