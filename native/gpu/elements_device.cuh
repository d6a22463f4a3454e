// Reduces pairs of elements of each type; types narrower than f32 are computed in f32. On a GPU it uses the GPU's
// instructions where they exist; the versions for the host give the same bits, except for NaNs.
#pragma once

#include "native/gpu/jobs.h"
#include "native/gpu/words_device.cuh"

namespace weft::gpu::device {

template <class To, class From>
WEFT_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

#if defined(__CUDA_ARCH__)
WEFT_DEVICE float lesser(float a, float b) { return fminf(a, b); }
WEFT_DEVICE double lesser(double a, double b) { return fmin(a, b); }
WEFT_DEVICE float greater(float a, float b) { return fmaxf(a, b); }
WEFT_DEVICE double greater(double a, double b) { return fmax(a, b); }
#else
template <class Float>
Float lesser(Float a, Float b) {
  if (a == b) return __builtin_signbit(a) ? a : b;
  return a < b || b != b ? a : b;
}
template <class Float>
Float greater(Float a, Float b) {
  return -lesser(-a, -b);
}
#endif

template <Operation kOperation, class Float>
WEFT_DEVICE Float combine(Float a, Float b) {
  if constexpr (kOperation == Operation::sum) return a + b;
  if constexpr (kOperation == Operation::min) return lesser(a, b);
  return greater(a, b);
}

WEFT_DEVICE float from_f16(u16 half) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
  return wide;
#else
  const u32 sign = u32{half} >> 15 << 31, exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 0) {  // 0 or subnormal: a multiple of 2^-24
    return bits_as<float>(sign | bits_as<u32>(static_cast<float>(fraction) * 0x1p-24f));
  }
  const u32 rebased = exponent == 31 ? 255 : exponent + (127 - 15);
  return bits_as<float>(sign | rebased << 23 | fraction << 13);
#endif
}

WEFT_DEVICE u16 to_f16(float wide) {
#if defined(__CUDA_ARCH__)
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(wide));
  return half;
#else
  const u32 bits = bits_as<u32>(wide), size = bits & 0x7fffffff, sign = bits >> 31 << 15;
  const auto signed_as = [sign](u32 half) { return static_cast<u16>(sign | half); };
  if (wide != wide) return 0x7fff;
  if (size >= 0x477ff000) return signed_as(0x7c00);  // 65,520 and above round to infinity
  // below 2^-14, the result is a multiple of 2^-24, the spacing of f32 numbers in [0.5, 1), so an addition rounds it
  if (size < 0x38800000) {
    return signed_as(bits_as<u32>(bits_as<float>(size) + 0.5f) - bits_as<u32>(0.5f));
  }
  return signed_as((size + 0xfff + (size >> 13 & 1) - ((127u - 15) << 23)) >> 13);
#endif
}

WEFT_DEVICE float from_bf16(u16 half) { return bits_as<float>(u32{half} << 16); }

WEFT_DEVICE u16 to_bf16(float wide) {
#if defined(__CUDA_ARCH__)
  u16 half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(wide));
  return half;
#else
  const u32 bits = bits_as<u32>(wide);
  return wide != wide ? u16{0x7fff} : static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

// Operations on integers. `Bits`: the type as which an element is loaded; sums are of Bits and wrap. `Number`: the type
// as which elements are compared.
template <class BitsType, class NumberType>
struct Whole {
  using Bits = BitsType;
  template <Operation kOperation>
  static WEFT_DEVICE Bits reduce(Bits a, Bits b) {
    const auto x = static_cast<NumberType>(a), y = static_cast<NumberType>(b);
    if constexpr (kOperation == Operation::sum) return static_cast<Bits>(a + b);
    if constexpr (kOperation == Operation::min) return x < y ? a : b;
    return x < y ? b : a;
  }
};

template <class BitsType, class Float>
struct Floating {
  using Bits = BitsType;
  template <Operation kOperation>
  static WEFT_DEVICE Bits reduce(Bits a, Bits b) {
    return bits_as<Bits>(combine<kOperation>(bits_as<Float>(a), bits_as<Float>(b)));
  }
};

template <ElementType>
struct Element;
template <>
struct Element<ElementType::f32> : Floating<u32, float> {};
template <>
struct Element<ElementType::f64> : Floating<u64, double> {};
template <>
struct Element<ElementType::i32> : Whole<u32, std::int32_t> {};
template <>
struct Element<ElementType::i64> : Whole<u64, std::int64_t> {};
template <>
struct Element<ElementType::u8> : Whole<u8, u8> {};
template <>
struct Element<ElementType::f16> {
  using Bits = u16;
  template <Operation kOperation>
  static WEFT_DEVICE Bits reduce(Bits a, Bits b) {
    return to_f16(combine<kOperation>(from_f16(a), from_f16(b)));
  }
};
template <>
struct Element<ElementType::bf16> {
  using Bits = u16;
  template <Operation kOperation>
  static WEFT_DEVICE Bits reduce(Bits a, Bits b) {
    return to_bf16(combine<kOperation>(from_bf16(a), from_bf16(b)));
  }
};

// Reduces the elements of two 64-bit values `a` and `b` pair by pair; each value is given as two 32-bit words.
template <ElementType kType, Operation kOperation>
WEFT_DEVICE u64 reduce_64(u32 a_low, u32 a_high, u32 b_low, u32 b_high) {
  using Bits = typename Element<kType>::Bits;
  const u64 a = u64{a_high} << 32 | a_low, b = u64{b_high} << 32 | b_low;
  u64 reduced = 0;
  WEFT_UNROLL
  for (u32 bit = 0; bit < 64; bit += 8 * sizeof(Bits)) {
    const auto each =
        Element<kType>::template reduce<kOperation>(static_cast<Bits>(a >> bit), static_cast<Bits>(b >> bit));
    reduced |= u64{each} << bit;
  }
  return reduced;
}

template <ElementType kType, Operation kOperation>
WEFT_DEVICE Word reduce_word(Word a, Word b) {
  const u64 low = reduce_64<kType, kOperation>(a.x, a.y, b.x, b.y);
  const u64 high = reduce_64<kType, kOperation>(a.z, a.w, b.z, b.w);
  return {static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high), static_cast<u32>(high >> 32)};
}

}  // namespace weft::gpu::device
