// A benchmark of the profiler in the plugin's library: the calls that NCCL makes for an operation, made by one thread.
#pragma once

#include <cstdint>
#include <string>

#include "native/core/status.h"

namespace weft::bench {

struct ProfilerBenchResult {
  double ns_per_operation = 0;
  std::int64_t calls_per_operation = 0;
};

// Makes the calls of version 5 of NCCL's profiler interface for `operations` all-reduces. For each of `channels`
// channels, an all-reduce has a proxy operation that sends and one that receives, with `steps` steps each. The knob
// `trace` says where the trace is written.
Status bench_profiler(const std::string& library, std::int64_t operations, int channels, int steps,
                      ProfilerBenchResult* out, std::string* error);

}  // namespace weft::bench
