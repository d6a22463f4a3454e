// An emulated copier for messages that pass through bounce buffers; the rig controls each of its copies. Private to the
// rig's files.
#pragma once

#include <memory>
#include <vector>

#include "native/core/random.h"
#include "native/core/stage.h"

namespace weft::sim {

using core::i64;
using core::u32;
using core::u64;
using core::u8;

class Staging {
 public:
  // Creates one ring for each of `stripes` flows. `limit_bytes`: the initial Stage::limit of each ring.
  Staging(u32 stripes, u64 ring_bytes, u64 piece_bytes, u64 limit_bytes);

  core::Stage* stage(u32 stripe) noexcept { return &stages_[stripe]; }
  // Copies at most one piece of the stripe from `message` into its ring. Returns whether it copied one.
  bool fill(u32 stripe, const u8* message) noexcept;
  // Copies all complete pieces from a stripe's ring to `message`. Returns whether it copied any.
  bool empty(u32 stripe, u8* message) noexcept;
  // Whether fill(), or empty(), could copy a piece now.
  bool may_fill(u32 stripe) const noexcept;
  bool may_empty(u32 stripe) const noexcept;
  // Overwrites the rings, because their contents must not be used any more.
  void spoil(u8 byte) noexcept;

 private:
  struct Lane {
    std::vector<u8> ring;
    std::unique_ptr<std::atomic<u32>[]> released;
    core::Stage* stage = nullptr;
    u64 copied = 0;
  };
  static u64 left(const Lane& lane) noexcept;
  static u64 piece_at(const Lane& lane, u64 at) noexcept {
    return at % lane.stage->ring_bytes / lane.stage->piece_bytes;
  }
  std::unique_ptr<core::Stage[]> stages_;  // one array, as the engines expect it
  std::vector<Lane> lanes_;
};

}  // namespace weft::sim
