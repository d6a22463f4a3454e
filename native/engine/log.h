// The log for operators. Lines of the level WEFT_LOG_LEVEL or more severe go to standard error or to a sink, never to
// standard output. Segments are not logged.
//
// log() queues the line and does not wait; a thread, started by the first line, writes it. At most kLogLinesMax lines
// are queued; further ones are dropped, and a later line states how many. A forked child has an empty queue and starts
// a thread of its own when it logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "native/engine/knobs.h"

namespace weft::engine {

inline constexpr std::size_t kLogLinesMax = 256;
inline constexpr std::size_t kLogLineBytesMax = 2000;  // so that a line is one atomic write to a pipe (4096 bytes)

void set_log_level(LogLevel level) noexcept;
// Whether lines of this level are logged; if not, the caller need not make their text.
bool logs(LogLevel level) noexcept;
// Logs one line. Control characters, which may come from a peer or a library, are replaced by '?'.
void log(LogLevel level, std::string_view text) noexcept;
// Logs one line whatever WEFT_LOG_LEVEL is.
void log_always(LogLevel level, std::string_view text) noexcept;

// Sends lines to `sink` instead of standard error; null: to standard error again. The writing thread calls the sink,
// one line at a time. The old sink may still get one line after set_log_sink() has returned.
using LogSink = void (*)(LogLevel level, const char* text) noexcept;
void set_log_sink(LogSink sink) noexcept;

// Waits until all queued lines are written. False if that takes longer than `patience_ns`, for example because nobody
// reads standard error.
bool flush_log(std::int64_t patience_ns) noexcept;

// Keeps the writing thread alive. The destructor of the last LogUse lets the thread write the queued lines and end, and
// waits for that for at most a quarter of a second.
class LogUse {
 public:
  LogUse() noexcept;
  ~LogUse();
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;
};

}  // namespace weft::engine
