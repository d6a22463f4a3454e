// What an engine writes to the log about its peers and paths: events of the core as lines, bounded in rate.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/core/stack.h"
#include "native/engine/log_limit.h"

namespace weft::engine {

// Called on the engine's thread. A line that memory does not suffice for is lost, and nothing else.
class EventLog {
 public:
  explicit EventLog(core::Stack* stack) noexcept : stack_(stack) {}

  // Path i of the peer leads to addresses[i % size].
  void name_peer(std::uint32_t peer, std::vector<std::string> addresses);
  void on_event(std::int64_t now_ns, const core::Event& event) noexcept;
  // Looks for packets that were refused since the last call.
  void on_received(std::int64_t now_ns) noexcept {
    const telemetry::EngineCells& seen = stack_->counters();
    const bool more = seen.bad_magic != bad_magic_ || seen.bad_version != bad_version_;
    if (more && now_ns >= refused_again_ns_) on_refused(now_ns);
  }

 private:
  static constexpr std::int64_t kPathLines = 32;  // in LogLimit::kIntervalNs

  void on_refused(std::int64_t now_ns) noexcept;
  void path_down(std::int64_t now_ns, const core::Event& event);
  void path_up(std::int64_t now_ns, const core::Event& event);
  void segment_size(const core::Event& event);
  void policy_failed(policy::Family family);
  std::string path_text(std::uint32_t peer, std::uint8_t path) const;

  core::Stack* stack_;
  std::unordered_map<std::uint32_t, std::vector<std::string>> addresses_;   // by peer
  std::map<std::pair<std::uint32_t, std::uint8_t>, std::int64_t> down_ns_;  // by peer and path: since when
  LogLimit path_limit_{kPathLines};
  std::int64_t bad_magic_ = 0, bad_version_ = 0;  // of which the log has told
  std::int64_t refused_again_ns_ = 0;
  bool policy_failure_logged_ = false;
};

}  // namespace weft::engine
