// Computes the CRC-32C (Castagnoli, RFC 3720 B.4) of byte ranges, with CPU instructions if available. Stateless and
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

// Returns the CRC of all bytes so far: `crc` is that of the bytes before `data`, 0 at the start.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// Like crc32c(), but also copies the bytes to `to` in the same pass over memory. The two ranges must not overlap.
std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

// An implementation with tables, for CPUs without CRC instructions and as a reference in tests.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// The implementation for CPUs without AVX-512.
std::uint32_t crc32c_narrow(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;
std::uint32_t crc32c_narrow_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace weft::wire
