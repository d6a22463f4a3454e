// Detects instruction set extensions that both the CPU and the kernel (which must save the registers) support. It uses
// CPUID directly, because the run-time libraries of different compilers give different answers.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace weft::wire {

struct Cpu {
  bool v3 = false;    // AVX2, FMA, BMI1, BMI2, LZCNT, MOVBE, F16C: the baseline of compiled policies
  bool wide = false;  // AVX-512 F, DQ, VL and VPCLMULQDQ, which the fastest CRC uses

  // Bits as in the Intel SDM: volume 2, CPUID, leaves 1 and 7; volume 1, section 13.3, XCR0.
  static Cpu of_this_machine() noexcept {
    constexpr unsigned kFma = 1u << 12, kXsave = 1u << 27, kPclmul = 1u << 1;  // CPUID leaf 1, register ecx
    constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29, kOne = kFma | kMovbe | kF16c;
    constexpr unsigned kLzcnt = 1u << 5;                                  // CPUID leaf 0x80000001, register ecx
    constexpr unsigned kBmi = 1u << 3, kAvx2 = 1u << 5, kBmi2 = 1u << 8;  // CPUID leaf 7, register ebx
    constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 31,
                       kVpclmul = 1u << 10;            // CPUID leaf 7, registers ebx and ecx
    constexpr std::uint32_t kYmm = 0x06, kZmm = 0xe6;  // bits of register XCR0
    Cpu found;
    unsigned eax = 0, ebx = 0, first = 0, edx = 0, wide_ebx = 0, wide_ecx = 0;
    if (__get_cpuid(1, &eax, &ebx, &first, &edx) == 0 || (first & kXsave) == 0) return found;
    if (__get_cpuid_count(7, 0, &eax, &wide_ebx, &wide_ecx, &edx) == 0) return found;
    unsigned extended = 0;
    if (__get_cpuid(0x80000001, &eax, &ebx, &extended, &edx) == 0) return found;
    std::uint32_t kept = 0, high = 0;
    __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    constexpr unsigned kSeven = kBmi | kAvx2 | kBmi2;
    found.v3 =
        (kept & kYmm) == kYmm && (first & kOne) == kOne && (extended & kLzcnt) != 0 && (wide_ebx & kSeven) == kSeven;
    found.wide = found.v3 && (kept & kZmm) == kZmm && (first & kPclmul) != 0 && (wide_ebx & kAvx512) == kAvx512 &&
                 (wide_ecx & kVpclmul) != 0;
    return found;
  }
};

}  // namespace weft::wire
#endif
