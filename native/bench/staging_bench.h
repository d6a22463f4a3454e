// Measures the cost of bounce buffers, for bench/gpu.py: the copier with a simulated network that sends and places
// immediately, against plain copies of pinned memory. No message is transferred.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

struct StagingPlan {
  int device = 0;
  Address source = 0;  // read by copies to the host; 0: not in this direction
  Address target = 0;  // written by copies to the device; 0: not in this direction
  std::uint64_t bytes = 0;
  std::uint64_t ring_bytes_max = 0;
  int repeats = 1;
};

// Nanoseconds for all repeats in sequence, in each direction that has an address, both concurrently; below 0 with
// `error`.
std::int64_t time_staged(const Driver& driver, const StagingPlan& plan, std::string* error);
// As time_staged(), with one asynchronous copy per repeat and direction, from or to pinned memory of the full size.
std::int64_t time_copied(const Driver& driver, const StagingPlan& plan, std::string* error);

}  // namespace weft::gpu
