// How long a ring is, and its pieces: of a message's part, and of the pinned memory that it may take. pinned_pool.h
// lends the memory.
#pragma once

#include <algorithm>
#include <cstddef>

namespace weft::gpu {

inline constexpr std::size_t kGranuleBytes = 64 << 10;  // rings and pieces are multiples of it
// Each copy costs some microseconds more than its bytes do; docs/DIARY.md has what pieces of other sizes reach.
inline constexpr std::size_t kPieceBytesMin = 1 << 20, kPieceBytesMax = 4 << 20;
inline constexpr std::size_t kPiecesWanted = 8;  // of a part: the network begins when the first is there

struct RingShape {
  std::size_t ring_bytes, piece_bytes;
};

// `most_bytes`: two granules at least. A short part is one piece; a ring that is shorter than its part has two at
// least, for which see core/stage.h.
constexpr RingShape ring_shape(std::size_t part_bytes, std::size_t most_bytes) noexcept {
  constexpr auto down = [](std::size_t bytes) { return bytes / kGranuleBytes * kGranuleBytes; };
  const std::size_t part = std::max(down(part_bytes + kGranuleBytes - 1), kGranuleBytes);
  const std::size_t least = std::min(kPieceBytesMin, down(most_bytes / 2));
  const std::size_t piece = std::clamp(down(std::min(part, most_bytes) / kPiecesWanted), least, kPieceBytesMax);
  if (part <= std::min(piece + piece / 4, most_bytes)) return {part, part};
  return {std::min((part + piece - 1) / piece, most_bytes / piece) * piece, piece};
}

}  // namespace weft::gpu
