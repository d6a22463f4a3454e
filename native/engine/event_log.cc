// Writes the log lines about an engine's peers, paths, losses and policies.
#include "native/engine/event_log.h"

#include <algorithm>
#include <new>

#include "native/policy/loader.h"

namespace weft::engine {

void EventLog::on_event(std::int64_t now_ns, const core::Event& event) noexcept {
  try {
    switch (event.kind) {
      case core::Event::Kind::path_down:
        return paths_.path_down(now_ns, event);
      case core::Event::Kind::path_up:
        return paths_.path_up(now_ns, event);
      case core::Event::Kind::segment_size:
        return segment_size(event);
      case core::Event::Kind::policy_failed:
        return policy_failed(static_cast<policy::Family>(event.value));
      case core::Event::Kind::peer_released:
        names_.forget(event.peer);
        paths_.forget(event.peer);
        return;
      default:
        if (logs(LogLevel::debug)) debug(now_ns, event);
        return;
    }
  } catch (const std::bad_alloc&) {
  }
}

void EventLog::segment_size(const core::Event& event) {
  const core::Peer* peer = stack_->peer(event.peer);
  if (peer == nullptr) return;
  const std::uint64_t agreed = peer->config().segment_bytes;
  log(event.value < agreed ? LogLevel::warn : LogLevel::info,
      "sending datagrams of at most " + std::to_string(event.value) + " bytes to " + peer_text(event.peer) +
          " (agreed: " + std::to_string(agreed) + "): " +
          (event.value < agreed ? "longer ones are lost on every path; check the MTU of the switches in between"
                                : "all paths deliver them"));
}

void EventLog::debug(std::int64_t now_ns, const core::Event& event) {
  switch (event.kind) {
    case core::Event::Kind::path_probed:
      return probe_limit_.log(now_ns, LogLevel::debug, "probing " + path_text(event.peer, event.path));
    case core::Event::Kind::peer_connected:
      return peer_limit_.log(
          now_ns, LogLevel::debug,
          "connected to " + peer_text(event.peer) + " over " + std::to_string(event.value) + " paths");
    case core::Event::Kind::peer_quiet:
      return peer_limit_.log(now_ns, LogLevel::debug,
                             "received nothing from " + peer_text(event.peer) + " for " +
                                 seconds_text(stack_->config().peer_silence_ns / 4) +
                                 " or longer while a flow waits for it");
    case core::Event::Kind::peer_dead:
      return peer_limit_.log(now_ns, LogLevel::debug,
                             peer_text(event.peer) + " is considered dead: " + status_text(event.status));
    case core::Event::Kind::loss:
      return loss_limit_.log(now_ns, LogLevel::debug,
                             path_text(event.peer, event.path) + ": flow " + std::to_string(event.flow) + " lost " +
                                 std::to_string(event.value) + " segments");
    case core::Event::Kind::timeout:
      return loss_limit_.log(now_ns, LogLevel::debug,
                             path_text(event.peer, event.path) + ": timeout of flow " + std::to_string(event.flow) +
                                 " with " + std::to_string(event.value) + " segments in flight");
    case core::Event::Kind::policy_replaced:
      return policy_limit_.log(
          now_ns, LogLevel::debug,
          std::string("replaced the ") + policy::family_name(static_cast<policy::Family>(event.value)) + " policy of " +
              (event.flow == core::kNone ? "" : "flow " + std::to_string(event.flow) + " to ") + peer_text(event.peer));
    default:
      return;
  }
}

// Logs only the first policy failure, because every flow can have the same failure. All failures are counted.
void EventLog::policy_failed(policy::Family family) {
  if (policy_failure_logged_) return;
  policy_failure_logged_ = true;
  const core::PolicyFailure& failure = stack_->shared().failure_of(family);
  log(LogLevel::warn, policy::failure_text(family, failure.name, failure.hook) +
                          " and `fixed` replaces it (test it with weft policy check FILE); further failures are only "
                          "counted, in events_policy_failed");
}

void EventLog::on_refused(std::int64_t now_ns) noexcept {
  const telemetry::EngineCells& seen = stack_->counters();
  const bool other_version = seen.bad_version != bad_version_;
  bad_magic_ = seen.bad_magic;
  bad_version_ = seen.bad_version;
  refused_again_ns_ = now_ns + LogLimit::kIntervalNs;
  try {
    log(LogLevel::warn,
        other_version
            ? "dropping packets of another protocol version of weft on a data port (counter bad_version)"
            : "dropping packets that do not begin with weft's magic number on a data port (counter bad_magic)");
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace weft::engine
