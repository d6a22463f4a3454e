// Folds 256 bytes at a time into four registers, and at the end folds those into 16 bytes with the same CRC (Gopal et
// al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). The crc32 instruction
// processes the remaining bytes.
#include "native/wire/crc32c_wide.h"

#if defined(__x86_64__) && defined(__SSE4_2__)
#include <immintrin.h>

#include <cstring>

#include "native/wire/cpu.h"
#include "native/wire/crc32c_field.h"

namespace weft::wire {
namespace {

#define WEFT_WIDE __attribute__((target("avx512f,avx512vl,avx512dq,pclmul,vpclmulqdq,prfchw")))

// Factors that move 16 bytes ahead by `distance` bits: one for each 8-byte half; the first half must move 64 bits
// further. The offsets 31 and -33 correct for the 32-bit width of the CRC, and for a product of reflected factors being
// one bit short.
struct Fold {
  std::int64_t first, second;
  explicit constexpr Fold(unsigned distance)
      : first(crc32c_power(distance + 31)), second(crc32c_power(distance - 33)) {}
};
constexpr Fold kFold2048(2048), kFold512(512), kFold384(384), kFold256(256), kFold128(128);

WEFT_WIDE inline __m512i four_times(const Fold& fold) noexcept {
  return _mm512_set_epi64(fold.second, fold.first, fold.second, fold.first, fold.second, fold.first, fold.second,
                          fold.first);
}

WEFT_WIDE inline __m512i folded(__m512i value, __m512i factors, __m512i next) noexcept {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                   _mm512_clmulepi64_epi128(value, factors, 0x11), next, kXorOfThree);
}

template <bool copies>
WEFT_WIDE inline __m512i taken(std::uint8_t* to, const std::uint8_t* from, std::size_t at) noexcept {
  const __m512i value = _mm512_loadu_si512(from + at);
  if constexpr (copies) _mm512_storeu_si512(to + at, value);
  return value;
}

// Prefetch distance in bytes. The hardware prefetcher stops at page boundaries, and a store to a line outside the cache
// waits until that line has been read.
constexpr std::size_t kAhead = 2048;

template <bool copies>
WEFT_WIDE inline void fetch_ahead(const std::uint8_t* to, const std::uint8_t* from, std::size_t at) noexcept {
  for (std::size_t line = at + kAhead; line != at + kAhead + 256; line += 64) {
    if constexpr (copies) {
      __builtin_prefetch(to + line, 1);
    } else {
      __builtin_prefetch(from + line);
    }
  }
}

template <bool copies>
WEFT_WIDE std::uint32_t run(std::uint32_t state, std::uint8_t* to, const std::uint8_t* from,
                            std::size_t bytes) noexcept {
  __m512i a = taken<copies>(to, from, 0), b = taken<copies>(to, from, 64);
  __m512i c = taken<copies>(to, from, 128), d = taken<copies>(to, from, 192);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m512i far = four_times(kFold2048), near = four_times(kFold512);
  std::size_t at = 256;
  for (; bytes - at >= 256; at += 256) {
    fetch_ahead<copies>(to, from, at);
    a = folded(a, far, taken<copies>(to, from, at));
    b = folded(b, far, taken<copies>(to, from, at + 64));
    c = folded(c, far, taken<copies>(to, from, at + 128));
    d = folded(d, far, taken<copies>(to, from, at + 192));
  }
  a = folded(folded(folded(a, near, b), near, c), near, d);
  for (; bytes - at >= 64; at += 64) a = folded(a, near, taken<copies>(to, from, at));
  const __m512i lanes = _mm512_set_epi64(0, 0, kFold128.second, kFold128.first, kFold256.second, kFold256.first,
                                         kFold384.second, kFold384.first);
  const __m512i last = _mm512_maskz_mov_epi64(0xC0, a);  // keeps only the last lane, which is not folded
  std::uint64_t words[8];
  _mm512_storeu_si512(words, folded(a, lanes, last));
  std::uint64_t crc = _mm_crc32_u64(0, words[0] ^ words[2] ^ words[4] ^ words[6]);
  crc = _mm_crc32_u64(crc, words[1] ^ words[3] ^ words[5] ^ words[7]);
  for (; bytes - at >= 8; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, from + at, 8);
    if constexpr (copies) std::memcpy(to + at, &word, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto tail = static_cast<std::uint32_t>(crc);
  for (; at != bytes; ++at) {
    if constexpr (copies) to[at] = from[at];
    tail = _mm_crc32_u8(tail, from[at]);
  }
  return tail;
}

}  // namespace

bool crc32c_wide_runs_here() noexcept {
  static const bool runs = Cpu::of_this_machine().wide;
  return runs;
}

std::uint32_t crc32c_wide(std::uint32_t state, const std::uint8_t* from, std::size_t bytes) noexcept {
  return run<false>(state, nullptr, from, bytes);
}

std::uint32_t crc32c_wide_copy(std::uint32_t state, std::uint8_t* to, const std::uint8_t* from,
                               std::size_t bytes) noexcept {
  return run<true>(state, to, from, bytes);
}

}  // namespace weft::wire

#else

namespace weft::wire {

bool crc32c_wide_runs_here() noexcept { return false; }
std::uint32_t crc32c_wide(std::uint32_t state, const std::uint8_t*, std::size_t) noexcept { return state; }
std::uint32_t crc32c_wide_copy(std::uint32_t state, std::uint8_t*, const std::uint8_t*, std::size_t) noexcept {
  return state;
}

}  // namespace weft::wire

#endif
