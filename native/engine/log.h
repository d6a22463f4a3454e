// The log: lines for the operator, to standard error or to a sink, at the level that the knob sets. Not called on the
// segment path; never writes to standard output, which belongs to the application.
//
// log() queues the line and does not wait; a thread, which the first line starts, writes it. At most kLogLinesMax lines
// are queued. Further ones are dropped, and the next line written tells how many. A child made by fork() has an empty
// queue, and starts its own thread when it logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::engine {

inline constexpr std::size_t kLogLinesMax = 256;
inline constexpr std::size_t kLogLineBytesMax = 2000;  // writes of up to 4096 bytes to a pipe are atomic

void set_log_level(LogLevel level) noexcept;
// Whether lines of this level are written; if not, a caller need not compose them.
bool logs(LogLevel level) noexcept;
// Control characters, which can come from a peer or a library, become '?', so that a call writes one line.
void log(LogLevel level, const std::string& text) noexcept;
// Logs the line at any level of the knob.
void log_always(LogLevel level, const std::string& text) noexcept;

// Sends lines to `sink` instead of standard error; null: to standard error again. The writing thread calls the sink,
// one line at a time. set_log_sink() does not wait for a call in progress: the old sink can still get one line.
using LogSink = void (*)(LogLevel level, const char* text) noexcept;
void set_log_sink(LogSink sink) noexcept;

// Waits until all lines so far are written. False: that took longer than `patience_ns`, as when the reader of standard
// error has stopped.
bool flush_log(std::int64_t patience_ns) noexcept;

// Keeps the writing thread alive. When the last LogUse is destroyed, the thread writes the queued lines and ends; the
// destructor waits for this, for a quarter of a second at most.
class LogUse {
 public:
  LogUse() noexcept;
  ~LogUse();
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;
};

}  // namespace weft::engine
