// A benchmark of the protocol core: two stacks over the mem datapath, run by one thread, without payload copies.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::bench {

struct CoreBenchResult {
  double ns_per_segment = 0;  // CPU time per acknowledged segment, both ends together
  std::int64_t segments = 0;
  std::int64_t acks = 0;
  std::int64_t resent = 0;
};

// Runs the benchmark with the policies that the knobs name. Not reentrant.
Status bench_core(const engine::Knobs& knobs, std::int64_t segments, std::int64_t segment_bytes, std::int64_t paths,
                  CoreBenchResult* out, std::string* error);

}  // namespace weft::bench
