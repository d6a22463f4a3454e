// Packs the time of an API call into the lowest 55 bits of its handle, below a bit that says whether a CUDA graph
// captures the call. 55 bits of nanoseconds wrap around after 417 days; the higher bits are taken from the time of the
// operation, which starts soon after the call.
#pragma once

#include <cstdint>

namespace weft::nccl {

inline constexpr std::uint64_t kCallTimeBits = 55;
inline constexpr std::uint64_t kCallTimeMask = (std::uint64_t{1} << kCallTimeBits) - 1;

constexpr std::uint64_t packed_call(std::int64_t time_ns, bool is_captured) noexcept {
  return std::uint64_t{is_captured} << kCallTimeBits | (static_cast<std::uint64_t>(time_ns) & kCallTimeMask);
}
constexpr bool is_captured_call(std::uint64_t packed) noexcept { return (packed >> kCallTimeBits & 1) != 0; }

// The time of a call that was made at most 417 days before now_ns.
constexpr std::int64_t call_time(std::uint64_t packed, std::int64_t now_ns) noexcept {
  const std::uint64_t since_ns = (static_cast<std::uint64_t>(now_ns) - packed) & kCallTimeMask;
  return now_ns - static_cast<std::int64_t>(since_ns);
}

}  // namespace weft::nccl
