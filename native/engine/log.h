// One line to standard error for what an operator must know, at the level the knob asks for.
// Never called on the segment path; never writes to standard output, which belongs to the application.
#pragma once

#include <string>

#include "native/engine/knobs.h"

namespace weft::engine {

void set_log_level(LogLevel level) noexcept;
void log(LogLevel level, const std::string& text) noexcept;

}  // namespace weft::engine
