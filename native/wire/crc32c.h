// CRC-32C (Castagnoli, RFC 3720 B.4) of byte ranges, by the CPU's instructions where there are any.
// Keeps no state; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

// Continues `crc` (0 to begin) over `bytes` at `data`.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// The same of `from`, while its bytes are copied to `to`, which does not overlap it: for one pass over memory.
std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

// Table-driven form of the same function: what other CPUs run and what tests compare with.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// The same without the widest instructions: what CPUs run that lack those.
std::uint32_t crc32c_narrow(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;
std::uint32_t crc32c_narrow_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace weft::wire
