// Arithmetic modulo the polynomial of CRC-32C, used at compile time to derive constants. Bits are in reflected order,
// as usual for this CRC: the highest bit is the coefficient of x^0.
#pragma once

#include <cstdint>

namespace weft::wire {

inline constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78u;  // the Castagnoli polynomial, bits reflected

constexpr std::uint32_t crc32c_times_x(std::uint32_t value) noexcept {
  return (value >> 1) ^ ((value & 1u) != 0 ? kCrc32cPolynomial : 0u);
}

// x to the power of `bits`.
constexpr std::uint32_t crc32c_power(unsigned bits) noexcept {
  std::uint32_t value = 0x80000000u;
  for (unsigned i = 0; i < bits; ++i) value = crc32c_times_x(value);
  return value;
}

constexpr std::uint32_t crc32c_product(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = crc32c_times_x(b);
  }
  return product;
}

}  // namespace weft::wire
