// Fills a piece of a ring only when all bytes of its previous use are acknowledged, and empties a piece only when it is
// complete. The caller calls fill() and empty() again until they can copy.
#include "tests/native/rig/rig_stage.h"

#include <algorithm>
#include <cstring>

namespace weft::sim {

Staging::Staging(u32 stripes, u64 ring_bytes, u64 piece_bytes, u64 limit_bytes)
    : stages_(std::make_unique<core::Stage[]>(stripes)), lanes_(stripes) {
  for (u32 i = 0; i < stripes; ++i) {
    Lane& lane = lanes_[i];
    lane.stage = &stages_[i];
    lane.ring.resize(ring_bytes);
    lane.released = std::make_unique<std::atomic<u32>[]>(ring_bytes / piece_bytes);
    lane.stage->ring = lane.ring.data();
    lane.stage->ring_bytes = ring_bytes;
    lane.stage->piece_bytes = piece_bytes;
    lane.stage->released = lane.released.get();
    lane.stage->limit.store(limit_bytes);
  }
}

// Size of the next piece to copy; 0: none.
u64 Staging::left(const Lane& lane) noexcept {
  const i64 bytes = lane.stage->stripe_bytes.load(std::memory_order_acquire);
  if (bytes < 0) return 0;
  return std::min(static_cast<u64>(bytes) - lane.copied, lane.stage->piece_bytes);
}

bool Staging::may_fill(u32 stripe) const noexcept {
  const Lane& lane = lanes_[stripe];
  if (left(lane) == 0) return false;
  const bool fresh = lane.copied < lane.stage->ring_bytes;
  return fresh || lane.released[piece_at(lane, lane.copied)].load(std::memory_order_acquire) == lane.stage->piece_bytes;
}

bool Staging::fill(u32 stripe, const u8* message) noexcept {
  if (!may_fill(stripe)) return false;
  Lane& lane = lanes_[stripe];
  const u64 bytes = left(lane);
  lane.released[piece_at(lane, lane.copied)].store(0, std::memory_order_relaxed);
  std::memcpy(lane.ring.data() + lane.copied % lane.stage->ring_bytes, message + lane.stage->begin + lane.copied,
              bytes);
  lane.copied += bytes;
  lane.stage->limit.store(lane.copied, std::memory_order_release);
  return true;
}

bool Staging::may_empty(u32 stripe) const noexcept {
  const Lane& lane = lanes_[stripe];
  const u64 bytes = left(lane);
  return bytes != 0 && lane.released[piece_at(lane, lane.copied)].load(std::memory_order_acquire) == bytes;
}

bool Staging::empty(u32 stripe, u8* message) noexcept {
  Lane& lane = lanes_[stripe];
  bool any = false;
  for (; may_empty(stripe); any = true) {
    const u64 bytes = left(lane);
    std::memcpy(message + lane.stage->begin + lane.copied, lane.ring.data() + lane.copied % lane.stage->ring_bytes,
                bytes);
    lane.released[piece_at(lane, lane.copied)].store(0, std::memory_order_relaxed);
    lane.copied += bytes;
    lane.stage->limit.store(lane.copied + lane.stage->ring_bytes, std::memory_order_release);
  }
  return any;
}

void Staging::spoil(u8 byte) noexcept {
  for (Lane& lane : lanes_) std::fill(lane.ring.begin(), lane.ring.end(), byte);
}

}  // namespace weft::sim
