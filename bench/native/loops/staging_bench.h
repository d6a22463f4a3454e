// Measures the cost of bounce buffers, for bench/gpu.py: the copier with a simulated network that sends and places
// immediately, compared with plain copies from and to pinned memory. No message is transferred.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

struct StagingPlan {
  int device = 0;
  Address source = 0;  // device memory copied to the host; 0: this direction is not measured
  Address target = 0;  // device memory written by the host; 0: this direction is not measured
  std::uint64_t bytes = 0;
  std::uint64_t ring_bytes_max = 0;
  int repeats = 1;
};

// Returns the nanoseconds for all repeats, one after the other. If both directions are measured, they run at the same
// time. On failure returns a value below 0 with `error` set.
std::int64_t time_staged(const Driver& driver, const StagingPlan& plan, std::string* error);
// Like time_staged(), but each repeat makes one asynchronous copy per direction, from or to pinned memory of the full
// size.
std::int64_t time_copied(const Driver& driver, const StagingPlan& plan, std::string* error);

}  // namespace weft::gpu
