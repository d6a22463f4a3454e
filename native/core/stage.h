// Bounce buffer (staging ring) for a message in memory that the core can't access, such as a GPU's: the state shared by
// the copier and the flow that carries a stripe of the message.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "native/core/types.h"

namespace weft::core {

// The stage of one stripe of a message. The ring of a receive holds at least one piece plus the longest segment, unless
// the whole stripe fits: a segment that wraps around the ring's end needs the first piece to be emptied, which may in
// turn need that segment. The copier fills (send) or empties (receive) pieces in order and advances `limit`; the flow
// counts the bytes that it no longer needs, in any order. Each byte is copied once: a resent segment is read from the
// ring, whose pieces are reused only after all their bytes are acknowledged.
struct Stage {
  u8* ring = nullptr;
  u64 ring_bytes = 0;
  u64 piece_bytes = 0;                  // divides ring_bytes
  std::atomic<u32>* settled = nullptr;  // per piece of the ring: bytes acknowledged, or placed, in its current use
  std::atomic<u64> limit{0};            // of the stripe: bytes available to send, or for which there is room
  u64 begin = 0;                        // offset of the stripe in the message
  std::atomic<i64> stripe_bytes{-1};    // -1: not known yet; a receive learns it from its first segment

  void settle_size(u64 begin_bytes, u64 bytes) noexcept {
    begin = begin_bytes;
    stripe_bytes.store(static_cast<i64>(bytes), std::memory_order_release);
  }
  // Whether the bytes up to `end_bytes` of the message are available to send, or have room.
  bool reaches(u64 end_bytes) const noexcept { return end_bytes - begin <= limit.load(std::memory_order_acquire); }
  // Number of bytes from `offset_bytes` of the message on that are contiguous in the ring.
  u64 together(u64 offset_bytes) const noexcept { return ring_bytes - (offset_bytes - begin) % ring_bytes; }
  u8* at(u64 offset_bytes) const noexcept { return ring + (offset_bytes - begin) % ring_bytes; }

  void write(u64 offset_bytes, const u8* from, u64 bytes) const noexcept {
    if (bytes == 0) return;
    const u64 first = std::min(bytes, together(offset_bytes));
    std::memcpy(at(offset_bytes), from, first);
    if (first != bytes) std::memcpy(ring, from + first, bytes - first);
  }
  // The flow no longer needs these bytes: they are acknowledged, or placed.
  void settle(u64 offset_bytes, u64 bytes) noexcept {
    for (u64 at = offset_bytes - begin, end = at + bytes; at != end;) {
      const u64 part = std::min(end - at, piece_bytes - at % piece_bytes);
      settled[at % ring_bytes / piece_bytes].fetch_add(static_cast<u32>(part), std::memory_order_release);
      at += part;
    }
  }
};

}  // namespace weft::core
