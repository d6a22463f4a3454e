// One line for what an operator must know, at the level that the knob asks for: to standard error, or to a sink.
// Never called on the segment path; never writes to standard output, which belongs to the application.
//
// No call waits for the line to be written: it is queued, and a thread that the first line starts writes it. At most
// kLogLinesMax lines wait. Further ones are dropped, and the next line written says how many were. A child made by
// fork() begins with an empty queue and a thread of its own, once it logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::engine {

inline constexpr std::size_t kLogLinesMax = 256;
inline constexpr std::size_t kLogLineBytesMax = 2000;  // a pipe takes up to 4096 bytes in one piece

void set_log_level(LogLevel level) noexcept;
// Whether a line of this level is written, so that a caller need not compose one that is not.
bool logs(LogLevel level) noexcept;
// Control characters become '?': a call is one line, whatever a peer or a library put into the text.
void log(LogLevel level, const std::string& text) noexcept;
// The same, whatever the level in force.
void log_always(LogLevel level, const std::string& text) noexcept;

// Where lines go instead of standard error, from now on; null: back to it. Called by the writing thread, one line at a
// time. It is the sink's to refuse a line that comes late: this call does not wait for one that is being written.
using LogSink = void (*)(LogLevel level, const char* text) noexcept;
void set_log_sink(LogSink sink) noexcept;

// Waits until every line so far is written, for `patience_ns` at most: what reads standard error may have stopped.
bool flush_log(std::int64_t patience_ns) noexcept;

// For as long as lines may come. With the last one the writing thread ends, once it has written what waits; for a
// quarter of a second that is waited for.
class LogUse {
 public:
  LogUse() noexcept;
  ~LogUse();
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;
};

}  // namespace weft::engine
