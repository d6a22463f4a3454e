// Computes the size of a bounce buffer (ring) and of its pieces, from the size of a message's part and the pinned
// memory that it may take from pinned_pool.h.
#pragma once

#include <algorithm>
#include <cstddef>

namespace weft::gpu {

inline constexpr std::size_t kGranuleBytes = 64 << 10;  // rings and pieces are multiples of this
// A copy costs a few microseconds in addition to its bytes; docs/DIARY.md has measurements for other piece sizes.
inline constexpr std::size_t kPieceBytesMin = 1 << 20, kPieceBytesMax = 4 << 20;
inline constexpr std::size_t kPiecesWanted = 8;  // per part, so that the network can begin with the first piece

struct RingShape {
  std::size_t ring_bytes, piece_bytes;
};

// `most_bytes`: at least two granules. A short part is a single piece; a ring shorter than its part has at least two
// (see core/stage.h).
constexpr RingShape ring_shape(std::size_t part_bytes, std::size_t most_bytes) noexcept {
  constexpr auto down = [](std::size_t bytes) { return bytes / kGranuleBytes * kGranuleBytes; };
  const std::size_t part = std::max(down(part_bytes + kGranuleBytes - 1), kGranuleBytes);
  const std::size_t least = std::min(kPieceBytesMin, down(most_bytes / 2));
  const std::size_t piece = std::clamp(down(std::min(part, most_bytes) / kPiecesWanted), least, kPieceBytesMax);
  if (part <= std::min(piece + piece / 4, most_bytes)) return {part, part};
  return {std::min((part + piece - 1) / piece, most_bytes / piece) * piece, piece};
}

}  // namespace weft::gpu
