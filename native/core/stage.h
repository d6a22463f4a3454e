// A message that lies where the core cannot reach, in device memory say, and passes through a ring of host memory piece
// by piece. What the one who copies and the flow that carries a stripe of it tell each other; copies nothing itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "native/core/types.h"

namespace weft::core {

// One part's of a message. A receive's ring holds a piece and the longest segment at least, unless all of the part
// fits: a segment that straddles the ring's end needs its first piece emptied, which may need that segment. The copier
// fills pieces of what is to be sent in order, or empties pieces of what came in order, and moves `limit`; the flow
// counts what it is done with, in any order. Each byte passes once: a copy of a segment that is sent again is read from
// the ring, whose piece is not used anew before all of it is acknowledged.
struct Stage {
  u8* ring = nullptr;
  u64 ring_bytes = 0;
  u64 piece_bytes = 0;                  // divides ring_bytes
  std::atomic<u32>* settled = nullptr;  // by piece of the ring: bytes acknowledged, or placed, in its present use
  std::atomic<u64> limit{0};            // of the stripe: bytes that are there to be sent, or for which there is room
  u64 begin = 0;                        // where the stripe lies in the message
  std::atomic<i64> stripe_bytes{-1};    // -1: not known yet, which a receive learns with its first segment

  void settle_size(u64 begin_bytes, u64 bytes) noexcept {
    begin = begin_bytes;
    stripe_bytes.store(static_cast<i64>(bytes), std::memory_order_release);
  }
  // Whether the bytes up to `end_bytes` of the message are there, or have room.
  bool reaches(u64 end_bytes) const noexcept { return end_bytes - begin <= limit.load(std::memory_order_acquire); }
  // Bytes from `offset_bytes` of the message on that lie together.
  u64 together(u64 offset_bytes) const noexcept { return ring_bytes - (offset_bytes - begin) % ring_bytes; }
  u8* at(u64 offset_bytes) const noexcept { return ring + (offset_bytes - begin) % ring_bytes; }

  void write(u64 offset_bytes, const u8* from, u64 bytes) const noexcept {
    if (bytes == 0) return;
    const u64 first = std::min(bytes, together(offset_bytes));
    std::memcpy(at(offset_bytes), from, first);
    if (first != bytes) std::memcpy(ring, from + first, bytes - first);
  }
  // The flow is done with these bytes: acknowledged, or placed.
  void settle(u64 offset_bytes, u64 bytes) noexcept {
    for (u64 at = offset_bytes - begin, end = at + bytes; at != end;) {
      const u64 part = std::min(end - at, piece_bytes - at % piece_bytes);
      settled[at % ring_bytes / piece_bytes].fetch_add(static_cast<u32>(part), std::memory_order_release);
      at += part;
    }
  }
};

}  // namespace weft::core
