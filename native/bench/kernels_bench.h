// What the kernels cost beside a copy on the device of as many bytes, for bench/gpu.py. Checks no result: kernels_check
// (tests/device) does.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

enum class KernelWork : std::uint8_t { gather, scatter, reduce };

struct KernelPlan {
  int device = 0;
  KernelWork work = KernelWork::gather;
  Address source = 0, target = 0;  // of `bytes` each; a reduction of f32 reads two halves of the one into the other
  std::uint64_t bytes = 0;
  std::uint64_t piece_bytes = 0;  // of gather and scatter: pieces in no order, at multiples of 16
  int repeats = 1;
};

struct KernelTimes {
  std::int64_t kernel_ns = -1, copy_ns = -1;  // of all repeats; below 0: not measured
  std::uint64_t bytes = 0;                    // that a launch wrote, and a copy
};

// With `error` where it could not be measured.
KernelTimes time_kernel(const Driver& driver, const KernelPlan& plan, std::string* error);

}  // namespace weft::gpu
