// Computes the size of a bounce buffer (ring) and of its pieces, from the size of a stripe and the pinned memory that
// it may take from a PinnedPool.
#pragma once

#include <algorithm>
#include <cstddef>

namespace weft::gpu {

inline constexpr std::size_t kGranuleBytes = 64 << 10;  // sizes of rings and pieces are multiples of this
// Limits of a piece: each copy of a piece costs a few microseconds besides the time for its bytes. bench/DIARY.md has
// measurements for other sizes.
inline constexpr std::size_t kPieceBytesMin = 1 << 20, kPieceBytesMax = 4 << 20;
inline constexpr std::size_t kPiecesWanted = 8;  // pieces per stripe, so that the network can begin with the first one

struct RingShape {
  std::size_t ring_bytes, piece_bytes;
};

// `part_bytes`: size of the stripe. `most_bytes`: memory available, at least two granules. A short stripe is a single
// piece. A ring shorter than its stripe has at least two pieces (see core/stage.h).
constexpr RingShape ring_shape(std::size_t part_bytes, std::size_t most_bytes) noexcept {
  constexpr auto down = [](std::size_t bytes) { return bytes / kGranuleBytes * kGranuleBytes; };
  const std::size_t part = std::max(down(part_bytes + kGranuleBytes - 1), kGranuleBytes);
  const std::size_t least = std::min(kPieceBytesMin, down(most_bytes / 2));
  const std::size_t piece = std::clamp(down(std::min(part, most_bytes) / kPiecesWanted), least, kPieceBytesMax);
  if (part <= std::min(piece + piece / 4, most_bytes)) return {part, part};
  return {std::min((part + piece - 1) / piece, most_bytes / piece) * piece, piece};
}

}  // namespace weft::gpu
