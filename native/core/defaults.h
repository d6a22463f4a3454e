// Default values shared by the protocol stack, the WEFT_* settings and the simulators.
#pragma once

#include <cstdint>

namespace weft::core::defaults {

inline constexpr std::int64_t kEagerBytes = 8192;
inline constexpr std::int64_t kEagerSlots = 16;
inline constexpr std::int64_t kWindowBytesMax = 16 << 20;
inline constexpr std::int64_t kRtoNsMin = 1'000'000;
inline constexpr std::int64_t kRtoNsMax = 1'000'000'000;
inline constexpr std::int64_t kPeerSilenceNs = 20'000'000'000;

}  // namespace weft::core::defaults
