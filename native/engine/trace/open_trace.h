// Opens the trace that the settings ask for.
#pragma once

#include <memory>
#include <string>

#include "native/engine/knobs.h"
#include "native/engine/trace/trace_writer.h"

namespace weft::engine {

// The process's writer for WEFT_TRACE, whose limits are those of the first call. Null: WEFT_TRACE is empty, or no file
// can be created there, which sets `error`.
std::shared_ptr<TraceWriter> open_trace(const Knobs& knobs, std::string* error);

}  // namespace weft::engine
