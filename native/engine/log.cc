// One write() a line, so that lines of several threads and processes do not mix.
// Keeps no file open and no buffer.
#include "native/engine/log.h"

#include <unistd.h>

#include <atomic>

namespace weft::engine {
namespace {

std::atomic<LogLevel> level_in_force{LogLevel::warn};

}  // namespace

void set_log_level(LogLevel level) noexcept { level_in_force.store(level, std::memory_order_relaxed); }

void log(LogLevel level, const std::string& text) noexcept {
  if (level > level_in_force.load(std::memory_order_relaxed)) return;
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  try {
    const std::string line = std::string("weft ") + kNames[static_cast<int>(level)] + ": " + text + "\n";
    static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  } catch (...) {
    // Out of memory for a log line: the line is lost, the transport goes on.
  }
}

}  // namespace weft::engine
