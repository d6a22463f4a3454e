// The kernel of CRC-32C for CPUs that multiply 512 bits without carry (AVX-512 and VPCLMULQDQ): 64 bytes a step.
// Takes and returns the register of the CRC, which is inverted at both ends of a range.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr std::size_t kCrc32cWideBytesMin = 256;

// False on other CPUs, where the other two must not be called.
bool crc32c_wide_runs_here() noexcept;

// `bytes` is kCrc32cWideBytesMin at least.
std::uint32_t crc32c_wide(std::uint32_t state, const std::uint8_t* from, std::size_t bytes) noexcept;
std::uint32_t crc32c_wide_copy(std::uint32_t state, std::uint8_t* to, const std::uint8_t* from,
                               std::size_t bytes) noexcept;

}  // namespace weft::wire
