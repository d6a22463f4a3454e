// What the protocol alone costs: two stacks over the mem datapath, stepped by one thread, no payload copied.
// A measurement, not a path that traffic takes.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::bench {

struct CoreBenchResult {
  double ns_per_segment = 0;  // processor time over segments acknowledged: both ends together
  std::int64_t segments = 0;
  std::int64_t acks = 0;
  std::int64_t resent = 0;
};

// Policies come from the knobs. Not thread-safe against itself.
Status bench_core(const engine::Knobs& knobs, std::int64_t segments, std::int64_t segment_bytes, std::int64_t paths,
                  CoreBenchResult* out, std::string* error);

}  // namespace weft::bench
