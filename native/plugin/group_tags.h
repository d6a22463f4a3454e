// The message that tells the sender of a connection with grouped receives which tags the buffers of one irecv have. It
// travels in the connection's other direction, which NCCL does not use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nccl {

inline constexpr int kReceivesMax = 8;         // as NCCL's InfiniBand transport
inline constexpr std::size_t kGroupsMax = 32;  // outstanding groups of a connection: as many requests as NCCL posts

// In the byte order of little-endian machines, like all of weft's messages.
struct GroupTags {
  std::int32_t count;
  std::int32_t tags[kReceivesMax];  // unused ones are zero
};
static_assert(sizeof(GroupTags) == 36);

}  // namespace weft::nccl
