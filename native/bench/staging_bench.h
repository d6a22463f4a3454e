// What passing through pinned rings costs: the copier at work on a network that takes and gives at once, against plain
// copies of pinned memory. For bench/gpu.py; moves no message.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/driver.h"

namespace weft::gpu {

struct StagingPlan {
  int device = 0;
  Address source = 0;  // read by copies to the host; 0: none that way
  Address target = 0;  // written by copies to the device; 0: none that way
  std::uint64_t bytes = 0;
  std::uint64_t ring_bytes_max = 0;
  int repeats = 1;
};

// Nanoseconds of all repeats, one after the other, each way that has an address, both at once; below 0 with `error`.
std::int64_t time_staged(const Driver& driver, const StagingPlan& plan, std::string* error);
// The same by one asynchronous copy a repeat and way, from and to pinned memory of the whole size.
std::int64_t time_copied(const Driver& driver, const StagingPlan& plan, std::string* error);

}  // namespace weft::gpu
