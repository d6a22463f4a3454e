// Measures the kernels against device copies of as many bytes, for bench/gpu.py. Results are checked by kernels_check
// (tests/device), not here.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

enum class KernelWork : std::uint8_t { gather, scatter, reduce };

struct KernelPlan {
  int device = 0;
  KernelWork work = KernelWork::gather;
  Address source = 0, target = 0;  // `bytes` each; a reduction of f32 reads two halves of source and writes target
  std::uint64_t bytes = 0;
  std::uint64_t piece_bytes = 0;  // gather and scatter: pieces in random order, at multiples of 16
  int repeats = 1;
};

struct KernelTimes {
  std::int64_t kernel_ns = -1, copy_ns = -1;  // all repeats together; below 0: not measured
  std::uint64_t bytes = 0;                    // written per launch or copy
};

// Sets `error` if a time could not be measured.
KernelTimes time_kernel(const Driver& driver, const KernelPlan& plan, std::string* error);

}  // namespace weft::gpu
