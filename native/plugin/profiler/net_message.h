// The data about a message that weft's network plugin and weft's profiler exchange through NCCL.
#pragma once

#include <cstdint>

namespace weft::nccl {

// The structure that weft's net plugin passes with a message, so that the message can name its channel. `channel` is
// set to the id of the channel's record.
struct NetMessage {
  std::uint32_t channel = 0;
};
inline constexpr std::int64_t kNetPluginId = 0x40 << 16 | 1;  // type and version of NetMessage

}  // namespace weft::nccl
