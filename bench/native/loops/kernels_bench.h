// Measures the kernels, compared with device copies of the same size, for bench/gpu.py. kernels_check (tests/device)
// checks their results.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

enum class KernelWork : std::uint8_t { gather, scatter, reduce };

struct KernelPlan {
  int device = 0;
  KernelWork work = KernelWork::gather;
  // Arrays of `bytes` bytes. A reduction of f32 reads the two halves of `source` and writes `target`.
  Address source = 0, target = 0;
  std::uint64_t bytes = 0;
  // For gather and scatter: size of the pieces, which are in random order at multiples of 16 bytes.
  std::uint64_t piece_bytes = 0;
  int repeats = 1;
};

struct KernelTimes {
  std::int64_t kernel_ns = -1, copy_ns = -1;  // time of all repeats together; below 0: not measured
  std::uint64_t bytes = 0;                    // bytes written per launch or copy
};

// Runs the plan. Sets `error` if a time could not be measured.
KernelTimes time_kernel(const Driver& driver, const KernelPlan& plan, std::string* error);

}  // namespace weft::gpu
