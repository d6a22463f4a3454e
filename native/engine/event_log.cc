// Writes the log lines about an engine's peers, paths, losses and policies.
#include "native/engine/event_log.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "native/policy/loader.h"

namespace weft::engine {
namespace {

std::string seconds_text(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

void EventLog::name_peer(std::uint32_t peer, std::vector<std::string> addresses) {
  addresses_[peer] = std::move(addresses);
}

void EventLog::on_event(std::int64_t now_ns, const core::Event& event) noexcept {
  try {
    switch (event.kind) {
      case core::Event::Kind::path_down:
        return path_down(now_ns, event);
      case core::Event::Kind::path_up:
        return path_up(now_ns, event);
      case core::Event::Kind::segment_size:
        return segment_size(event);
      case core::Event::Kind::policy_failed:
        return policy_failed(static_cast<policy::Family>(event.value));
      case core::Event::Kind::peer_released:
        addresses_.erase(event.peer);
        std::erase_if(down_, [&](const auto& each) { return each.first.first == event.peer; });
        return;
      default:
        if (logs(LogLevel::debug)) debug(now_ns, event);
        return;
    }
  } catch (const std::bad_alloc&) {
  }
}

std::string EventLog::peer_text(std::uint32_t peer) const {
  const auto place = addresses_.find(peer);
  const bool named = place != addresses_.end() && !place->second.empty();
  return named ? "peer " + place->second.front() : "peer " + std::to_string(peer);
}

std::string EventLog::path_text(std::uint32_t peer, std::uint8_t path) const {
  const auto place = addresses_.find(peer);
  const std::string to = place == addresses_.end() || place->second.empty()
                             ? "peer " + std::to_string(peer)
                             : place->second[path % place->second.size()];
  return "path " + std::to_string(path) + " to " + to;
}

void EventLog::path_down(std::int64_t now_ns, const core::Event& event) {
  down_[{event.peer, event.path}] = {now_ns, event.value, false};
  down_due_ns_ = std::min(down_due_ns_, now_ns + kDownLeastNs);
}

void EventLog::on_down_due(std::int64_t now_ns) noexcept {
  try {
    down_due_ns_ = kNever;
    for (auto& [place, down] : down_) {
      if (down.logged) continue;
      if (now_ns < down.since_ns + kDownLeastNs) {
        down_due_ns_ = std::min(down_due_ns_, down.since_ns + kDownLeastNs);
        continue;
      }
      down.logged = true;
      log_down(now_ns, place.first, place.second, down.cause);
    }
  } catch (const std::bad_alloc&) {
  }
}

void EventLog::log_down(std::int64_t now_ns, std::uint32_t peer, std::uint8_t path, std::uint64_t cause) {
  const core::Peer* to = stack_->peer(peer);
  if (to == nullptr) return;
  const core::PathSet& paths = to->paths();
  std::size_t left = 0;
  for (std::size_t i = 0; i < paths.count(); ++i) left += paths.path(i).usable ? 1 : 0;
  const std::string why =
      cause == 1 ? "datagrams of " + std::to_string(paths.segment_bytes()) + " bytes do not get through on it"
                 : "no reply arrives on it";
  path_limit_.log(now_ns, LogLevel::info,
                  path_text(peer, path) + " is down: " + why + "; probing it; " + std::to_string(left) + " of " +
                      std::to_string(paths.count()) + " paths are in use");
}

void EventLog::path_up(std::int64_t now_ns, const core::Event& event) {
  const auto down = down_.find({event.peer, event.path});
  if (down == down_.end()) return;
  const Down was = down->second;
  down_.erase(down);
  if (!was.logged) return;
  path_limit_.log(now_ns, LogLevel::info,
                  path_text(event.peer, event.path) + " is up again after " + seconds_text(now_ns - was.since_ns));
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
      return path_limit_.log(now_ns, LogLevel::debug, "probing " + path_text(event.peer, event.path));
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
