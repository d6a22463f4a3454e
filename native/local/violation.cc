// Writes what a peer did wrong in words, and limits how often that is logged.
#include "native/local/violation.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>

#include "native/engine/clock.h"
#include "native/engine/log_limit.h"

namespace weft::local {
namespace {

constexpr std::int64_t kViolationLines = 8;  // in LogLimit::kIntervalNs

}  // namespace

std::string Violation::text() const {
  char text[160];
  if (error != 0) {
    std::snprintf(text, sizeof text, "it lent %" PRIu64 " bytes at 0x%" PRIx64 " that cannot be read: %s", lent_bytes,
                  value, std::strerror(error));
    return text;
  }
  std::snprintf(text, sizeof text, "%s is %" PRIu64 ", and can be %" PRIu64, what, value, least);
  std::string whole = text;
  if (most != least) whole += " to " + std::to_string(most);
  if (most != least && step != 1) whole += " in steps of " + std::to_string(step);
  return whole;
}

void log_violation(const std::string& peer, pid_t process, const Violation& violation) noexcept {
  // Ports of all connections log here, each in its own thread.
  static std::mutex mutex;
  static engine::LogLimit limit(kViolationLines);
  try {
    const std::string who = process > 0 ? peer + ", process " + std::to_string(process) + " of this host," : peer;
    const std::string line =
        who + " broke the rules of the memory that it shares, and its connection ends: " + violation.text();
    const std::lock_guard<std::mutex> lock(mutex);
    limit.log(engine::now_ns(), engine::LogLevel::warn, line);
  } catch (const std::bad_alloc&) {  // out of memory: the line is lost
  }
}

}  // namespace weft::local
