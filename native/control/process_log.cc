// Formats the log lines about peer processes.
#include "native/control/process_log.h"

#include <cstdio>
#include <new>

namespace weft::control {
namespace {

std::string seconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

void ProcessLog::on_process(std::int64_t now_ns, const core::ProcessEvent& event) noexcept {
  try {
    const std::string name = event.name;
    switch (event.kind) {
      case core::ProcessEvent::Kind::connected:
        return connected_.log(now_ns, engine::LogLevel::info, "connected to " + name);
      case core::ProcessEvent::Kind::reconnected:
        return connected_.log(
            now_ns, engine::LogLevel::info,
            "the control socket to " + name + " was re-established after " + seconds(now_ns - event.since_ns));
      case core::ProcessEvent::Kind::disconnected: {
        const bool expected = event.status == Status::ok || event.status == Status::peer_dead;
        return disconnected_.log(now_ns, expected ? engine::LogLevel::info : engine::LogLevel::warn,
                                 "disconnected from " + name + ": " + event.cause);
      }
      case core::ProcessEvent::Kind::resumed:
        return stalled_.log(now_ns, engine::LogLevel::warn,
                            name + ": the peer process runs again after " + seconds(now_ns - event.since_ns));
      case core::ProcessEvent::Kind::stalled:
        return stalled(now_ns, event);
    }
  } catch (const std::bad_alloc&) {
  }
}

void ProcessLog::stalled(std::int64_t now_ns, const core::ProcessEvent& event) {
  const std::string patience = stall_limit_ns_ == 0 ? "without a limit" : seconds(stall_limit_ns_) + " at most";
  stalled_.log(
      now_ns, engine::LogLevel::warn,
      std::string(event.name) + ": the peer process has not run for " + seconds(now_ns - event.since_ns) +
          " while its host answers (is the process stopped, frozen, swapped out or starved?); waiting for it, " +
          patience + " (WEFT_PEER_TIMEOUT=stall)");
}

}  // namespace weft::control
