// Memory accesses of the kernels: values of 1 to 16 bytes at multiples of their size, and 16 bytes at any address. The
// file is also compiled for the host, for tests without a GPU, where a misaligned access traps.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define WEFT_DEVICE __device__ __forceinline__
#define WEFT_UNROLL _Pragma("unroll")
#else
#define WEFT_DEVICE inline
#define WEFT_UNROLL
#endif
// Tests can define this macro to observe every access; its arguments are address, bytes, and whether it is a store.
#ifndef WEFT_WATCH_ACCESS
#define WEFT_WATCH_ACCESS(address, bytes, stores) static_cast<void>(0)
#endif

namespace weft::gpu::device {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct alignas(16) Word {
  u32 x, y, z, w;
};

#if defined(__CUDA_ARCH__)

// Accesses are written in PTX with explicit global addresses: the compiler cannot know that a pointer made from an
// integer does not point to shared memory, and would test for that at every access. `volatile` keeps the accesses in
// program order.
WEFT_DEVICE u64 global(u64 address) { return __cvta_generic_to_global(reinterpret_cast<const void*>(address)); }

template <class T>
WEFT_DEVICE T load(u64 address) {
  if constexpr (sizeof(T) == 16) {
    T value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(global(address)));
    return value;
  } else if constexpr (sizeof(T) == 8) {
    u64 value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(global(address)));
    return value;
  } else {
    u32 value;
    if constexpr (sizeof(T) == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(global(address)));
    if constexpr (sizeof(T) == 2) asm volatile("ld.global.u16 %0, [%1];" : "=r"(value) : "l"(global(address)));
    if constexpr (sizeof(T) == 1) asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(global(address)));
    return static_cast<T>(value);
  }
}

template <class T>
WEFT_DEVICE void store(u64 address, T value) {
  if constexpr (sizeof(T) == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(address)), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(global(address)), "l"(value));
  } else {
    if constexpr (sizeof(T) == 4) asm volatile("st.global.u32 [%0], %1;" ::"l"(global(address)), "r"(value));
    if constexpr (sizeof(T) == 2) asm volatile("st.global.u16 [%0], %1;" ::"l"(global(address)), "r"(u32{value}));
    if constexpr (sizeof(T) == 1) asm volatile("st.global.u8 [%0], %1;" ::"l"(global(address)), "r"(u32{value}));
  }
}

#else

template <class T>
WEFT_DEVICE T load(u64 address) {
  if (address % sizeof(T) != 0) __builtin_trap();
  WEFT_WATCH_ACCESS(address, sizeof(T), false);
  T value;
  __builtin_memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}

template <class T>
WEFT_DEVICE void store(u64 address, T value) {
  if (address % sizeof(T) != 0) __builtin_trap();
  WEFT_WATCH_ACCESS(address, sizeof(T), true);
  __builtin_memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

#endif

// The 32 bits that start at bit `bits` (0 to 31) of `low` and continue in `high`.
WEFT_DEVICE u32 funnel(u32 low, u32 high, u32 bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, bits);
#else
  return bits == 0 ? low : low >> bits | high << (32 - bits);
#endif
}

// The 16 bytes that start `skip_bytes` (0 to 15) into `low` and continue in `high`, which follows it.
WEFT_DEVICE Word joined(Word low, Word high, u32 skip_bytes) {
  const bool by_8 = (skip_bytes & 8) != 0, by_4 = (skip_bytes & 4) != 0;
  const u32 bits = skip_bytes % 4 * 8;
  // Selects five consecutive words out of eight; each neighbouring pair of them gives one word of the result.
  const u32 s0 = by_8 ? low.z : low.x, s1 = by_8 ? low.w : low.y, s2 = by_8 ? high.x : low.z;
  const u32 s3 = by_8 ? high.y : low.w, s4 = by_8 ? high.z : high.x, s5 = by_8 ? high.w : high.y;
  const u32 t0 = by_4 ? s1 : s0, t1 = by_4 ? s2 : s1, t2 = by_4 ? s3 : s2, t3 = by_4 ? s4 : s3, t4 = by_4 ? s5 : s4;
  return {funnel(t0, t1, bits), funnel(t1, t2, bits), funnel(t2, t3, bits), funnel(t3, t4, bits)};
}

// Loads 16 bytes from an address that is `skip_bytes` past a multiple of 16. It reads only the two aligned words that
// contain them. If skip_bytes is 0, it reads the same word twice, the second time from cache, because a branch would
// split a batch of loads.
template <bool kSkips>
WEFT_DEVICE Word load_anywhere(u64 address, u32 skip_bytes) {
  if constexpr (!kSkips) return load<Word>(address);
  const u64 low = address - skip_bytes;
  return joined(load<Word>(low), load<Word>(low + (skip_bytes == 0 ? 0 : sizeof(Word))), skip_bytes);
}

}  // namespace weft::gpu::device
