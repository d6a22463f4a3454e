// State of a path that every packet reads or writes.
#pragma once

#include "native/core/rtt_estimator.h"
#include "native/core/types.h"

namespace weft::core {

// The state of a path fills one cache line.
struct alignas(64) PathState {
  RttEstimator rtt;
  i64 inflight_bytes = 0;
  i64 heard_ns = -1;  // when the peer last answered something that was sent over this path; -1: never
  u32 timeouts = 0;   // number of timeouts since the peer last answered on this path
  bool usable = true;
  bool probe_asked = false;  // a loss policy requested a probe of this usable path
};
static_assert(sizeof(PathState) == 64);

}  // namespace weft::core
