// Turns the knobs of tracing into limits for the trace's files.
#include "native/engine/trace/open_trace.h"

#include <algorithm>

namespace weft::engine {

std::shared_ptr<TraceWriter> open_trace(const Knobs& knobs, std::string* error) {
  if (knobs.trace.empty()) return nullptr;
  TraceLimits limits;
  limits.bytes_max = knobs.trace_bytes_max;
  limits.file_bytes = std::min(limits.file_bytes, limits.bytes_max / 4);
  limits.keep_ns = knobs.trace_keep_ns;
  return TraceWriter::open(knobs.trace, limits, error);
}

}  // namespace weft::engine
