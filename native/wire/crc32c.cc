// CRC-32C: eight bytes an instruction on x86-64 (SSE 4.2) and aarch64 (CRC), a 256-entry table elsewhere.
// Never reads beyond the range it is given.
#include "native/wire/crc32c.h"

#include <array>
#include <cstring>

namespace weft::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // reflected Castagnoli

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
    table[i] = value;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t value = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) value = (value >> 8) ^ kTable[(value ^ at[i]) & 0xFFu];
  return ~value;
}

#if defined(__SSE4_2__) || defined(__ARM_FEATURE_CRC32)
namespace {

inline std::uint64_t step8(std::uint64_t value, std::uint64_t word) noexcept {
#if defined(__SSE4_2__)
  return __builtin_ia32_crc32di(value, word);
#else
  return __builtin_aarch64_crc32cx(static_cast<std::uint32_t>(value), word);
#endif
}

inline std::uint32_t step1(std::uint32_t value, std::uint8_t byte) noexcept {
#if defined(__SSE4_2__)
  return __builtin_ia32_crc32qi(value, byte);
#else
  return __builtin_aarch64_crc32cb(value, byte);
#endif
}

}  // namespace

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint64_t value = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    value = step8(value, word);
  }
  auto tail = static_cast<std::uint32_t>(value);
  for (; bytes != 0; --bytes, ++at) tail = step1(tail, *at);
  return ~tail;
}
#else
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  return crc32c_portable(crc, data, bytes);
}
#endif

}  // namespace weft::wire
