// The bounce buffer (staging ring) through which a message in GPU memory passes, because the core cannot access that
// memory. A flow shares the buffer with a copier, which copies between the buffer and GPU memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "native/core/types.h"

namespace weft::core {

// The bounce buffer of one stripe of a message. The copier fills (send) or empties (receive) pieces of the ring in
// order and advances `limit`; the flow calls release() for bytes that it no longer needs, in any order. A piece of a
// send is reused only after all its bytes are acknowledged, because a segment may be resent from it. The ring of a
// receive holds the whole stripe, or at least one piece plus the longest segment: a segment that wraps around the
// ring's end could otherwise wait for the first piece, which waits for that segment.
struct Stage {
  u8* ring = nullptr;
  u64 ring_bytes = 0;
  u64 piece_bytes = 0;                   // ring_bytes is a multiple of it
  std::atomic<u32>* released = nullptr;  // for each piece of the ring: bytes acknowledged (send) or placed (receive)
  std::atomic<u64> limit{0};             // up to this offset in the stripe there are bytes to send, or room to receive
  u64 begin = 0;                         // offset of the stripe in the message
  std::atomic<i64> stripe_bytes{-1};     // size of the stripe; -1: unknown until a receive's first segment arrives

  void set_size(u64 begin_bytes, u64 bytes) noexcept {
    begin = begin_bytes;
    stripe_bytes.store(static_cast<i64>(bytes), std::memory_order_release);
  }
  // Whether the ring has the bytes to send, or room to receive, up to `end_bytes` of the message.
  bool reaches(u64 end_bytes) const noexcept { return end_bytes - begin <= limit.load(std::memory_order_acquire); }
  // How many bytes are contiguous in the ring, starting with the byte at `offset_bytes` of the message.
  u64 together(u64 offset_bytes) const noexcept { return ring_bytes - (offset_bytes - begin) % ring_bytes; }
  u8* at(u64 offset_bytes) const noexcept { return ring + (offset_bytes - begin) % ring_bytes; }

  void write(u64 offset_bytes, const u8* from, u64 bytes) const noexcept {
    if (bytes == 0) return;
    const u64 first = std::min(bytes, together(offset_bytes));
    std::memcpy(at(offset_bytes), from, first);
    if (first != bytes) std::memcpy(ring, from + first, bytes - first);
  }
  // The flow no longer needs these bytes of the ring: they are acknowledged (send) or placed (receive).
  void release(u64 offset_bytes, u64 bytes) noexcept {
    for (u64 at = offset_bytes - begin, end = at + bytes; at != end;) {
      const u64 part = std::min(end - at, piece_bytes - at % piece_bytes);
      released[at % ring_bytes / piece_bytes].fetch_add(static_cast<u32>(part), std::memory_order_release);
      at += part;
    }
  }
};

}  // namespace weft::core
