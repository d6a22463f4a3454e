// CRC-32C (Castagnoli, RFC 3720 B.4) of byte ranges, by the CPU's instruction where there is one.
// Keeps no state; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

// Continues `crc` (0 to begin) over `bytes` at `data`.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// Table-driven form of the same function: what other CPUs run and what tests compare with.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

}  // namespace weft::wire
