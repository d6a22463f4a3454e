// CRC-32C (Castagnoli, RFC 3720 B.4) of byte ranges, with CPU instructions if available. Stateless and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

// Continues `crc` (0 at the start) over `bytes` bytes at `data`.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// As crc32c(), and copies the bytes to `to` (no overlap) in the same pass over memory.
std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

// Table-driven implementation, for CPUs without CRC instructions and as a reference in tests.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// Implementation without AVX-512, for CPUs that lack it.
std::uint32_t crc32c_narrow(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;
std::uint32_t crc32c_narrow_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace weft::wire
