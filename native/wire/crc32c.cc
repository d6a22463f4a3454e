// CRC-32C implementations. With AVX-512: crc32c_wide.h. On other x86-64 (SSE 4.2) and on aarch64 (CRC): eight bytes per
// instruction, in three interleaved streams. Elsewhere: a table of 256 entries. None reads beyond the given range.
#include "native/wire/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "native/wire/crc32c_field.h"
#include "native/wire/crc32c_wide.h"

namespace weft::wire {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = crc32c_times_x(value);
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

// Computes the CRC state after a fixed number of zero bytes (a multiplication by a power of x), using one table for
// each byte of the state.
class Zeros {
 public:
  explicit constexpr Zeros(unsigned bytes) {
    const std::uint32_t power = crc32c_power(8 * bytes);
    for (unsigned i = 0; i < 4; ++i) {
      for (std::uint32_t value = 0; value < 256; ++value) {
        tables_[i][value] = crc32c_product(value << (8 * i), power);
      }
    }
  }
  std::uint64_t after(std::uint64_t value) const noexcept {
    return tables_[0][value & 0xFF] ^ tables_[1][value >> 8 & 0xFF] ^ tables_[2][value >> 16 & 0xFF] ^
           tables_[3][value >> 24 & 0xFF];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> tables_{};
};

// Bytes of one stream. Three streams keep the CRC unit busy: the instruction has a latency of three cycles and a
// throughput of one per cycle.
constexpr std::size_t kLong = 1024, kShort = 128;
constexpr Zeros kAfterLong(kLong), kAfterShort(kShort);

inline std::uint64_t word_at(const std::uint8_t* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}

template <std::size_t length>
inline std::uint64_t three_streams(std::uint64_t value, const std::uint8_t* at, const Zeros& zeros) noexcept {
  std::uint64_t second = 0, third = 0;
  for (const std::uint8_t* const end = at + length; at != end; at += 8) {
    value = step8(value, word_at(at));
    second = step8(second, word_at(at + length));
    third = step8(third, word_at(at + 2 * length));
  }
  return zeros.after(zeros.after(value) ^ second) ^ third;
}

}  // namespace

std::uint32_t crc32c_narrow(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint64_t value = ~crc;
  for (; bytes >= 3 * kLong; bytes -= 3 * kLong, at += 3 * kLong) value = three_streams<kLong>(value, at, kAfterLong);
  for (; bytes >= 3 * kShort; bytes -= 3 * kShort, at += 3 * kShort) {
    value = three_streams<kShort>(value, at, kAfterShort);
  }
  for (; bytes >= 8; bytes -= 8, at += 8) value = step8(value, word_at(at));
  auto tail = static_cast<std::uint32_t>(value);
  for (; bytes != 0; --bytes, ++at) tail = step1(tail, *at);
  return ~tail;
}
#else
std::uint32_t crc32c_narrow(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  return crc32c_portable(crc, data, bytes);
}
#endif

// Copies in blocks that stay in the L1 cache, because storing in three streams at once would be slower.
std::uint32_t crc32c_narrow_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kPiece = 6144;
  auto* put = static_cast<std::uint8_t*>(to);
  const auto* take = static_cast<const std::uint8_t*>(from);
  while (bytes != 0) {
    const std::size_t piece = std::min(bytes, kPiece);
    crc = crc32c_narrow(crc, take, piece);
    std::memcpy(put, take, piece);
    put += piece;
    take += piece;
    bytes -= piece;
  }
  return crc;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  if (bytes < kCrc32cWideBytesMin || !crc32c_wide_runs_here()) return crc32c_narrow(crc, data, bytes);
  return ~crc32c_wide(~crc, static_cast<const std::uint8_t*>(data), bytes);
}

std::uint32_t crc32c_copy(std::uint32_t crc, void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < kCrc32cWideBytesMin || !crc32c_wide_runs_here()) return crc32c_narrow_copy(crc, to, from, bytes);
  return ~crc32c_wide_copy(~crc, static_cast<std::uint8_t*>(to), static_cast<const std::uint8_t*>(from), bytes);
}

}  // namespace weft::wire
