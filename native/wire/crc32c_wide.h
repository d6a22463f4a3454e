// CRC-32C for CPUs with 512-bit carry-less multiplication (AVX-512 and VPCLMULQDQ). It takes and returns the internal
// CRC state, without the inversions at the start and end of a range.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr std::size_t kCrc32cWideBytesMin = 256;

// Whether this CPU has AVX-512 and VPCLMULQDQ. If not, the functions below must not be called.
bool crc32c_wide_runs_here() noexcept;

// `bytes` must be at least kCrc32cWideBytesMin.
std::uint32_t crc32c_wide(std::uint32_t state, const std::uint8_t* from, std::size_t bytes) noexcept;
std::uint32_t crc32c_wide_copy(std::uint32_t state, std::uint8_t* to, const std::uint8_t* from,
                               std::size_t bytes) noexcept;

}  // namespace weft::wire
