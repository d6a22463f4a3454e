// Logs an engine's events about peers, paths, losses and policies, with a limited number of lines per time.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/core/stack.h"
#include "native/engine/log_limit.h"

namespace weft::engine {

// The log of an engine's events. It runs on the engine's thread. If memory runs out, only the log line is lost.
class EventLog final : public core::TraceSink {
 public:
  explicit EventLog(core::Stack* stack) noexcept : stack_(stack) {
    using Kind = core::Event::Kind;
    static_cast<void>(stack->trace().subscribe(
        this, core::traced(Kind::path_down, Kind::path_probed, Kind::path_up, Kind::segment_size, Kind::peer_connected,
                           Kind::peer_quiet, Kind::peer_dead, Kind::peer_released, Kind::loss, Kind::timeout,
                           Kind::policy_failed, Kind::policy_replaced)));
  }
  ~EventLog() override { stack_->trace().unsubscribe(this); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Sets the addresses of a peer for log lines: path i leads to addresses[i % addresses.size()].
  void name_peer(std::uint32_t peer, std::vector<std::string> addresses);
  void on_event(std::int64_t now_ns, const core::Event& event) noexcept override;
  // Logs the paths that have been silent for kDownLeastNs. Also logs if packets were refused since the last such line.
  void on_received(std::int64_t now_ns) noexcept {
    if (now_ns >= down_due_ns_) on_down_due(now_ns);
    const telemetry::EngineCells& seen = stack_->counters();
    const bool more = seen.bad_magic != bad_magic_ || seen.bad_version != bad_version_;
    if (more && now_ns >= refused_again_ns_) on_refused(now_ns);
  }

 private:
  // A path that is silent for a shorter time gets no line, because a busy processor can delay replies by that much.
  static constexpr std::int64_t kDownLeastNs = 10'000'000;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  // Most log lines per LogLimit::kIntervalNs: about paths that become silent or usable, and for each kind of debug
  // line.
  static constexpr std::int64_t kPathLines = 32, kDebugLines = 32;

  // A silent path: when it became silent, why, and whether a log line says so.
  struct Down {
    std::int64_t since_ns;
    std::uint64_t cause;
    bool logged;
  };

  void on_refused(std::int64_t now_ns) noexcept;
  void on_down_due(std::int64_t now_ns) noexcept;
  void log_down(std::int64_t now_ns, std::uint32_t peer, std::uint8_t path, std::uint64_t cause);
  void path_down(std::int64_t now_ns, const core::Event& event);
  void path_up(std::int64_t now_ns, const core::Event& event);
  void segment_size(const core::Event& event);
  void policy_failed(policy::Family family);
  void debug(std::int64_t now_ns, const core::Event& event);
  std::string peer_text(std::uint32_t peer) const;
  std::string path_text(std::uint32_t peer, std::uint8_t path) const;

  core::Stack* stack_;
  std::unordered_map<std::uint32_t, std::vector<std::string>> addresses_;  // addresses of each peer
  std::map<std::pair<std::uint32_t, std::uint8_t>, Down> down_;            // silent paths, by peer and path
  std::int64_t down_due_ns_ = kNever;                                      // when the next silent path is logged
  LogLimit path_limit_{kPathLines}, peer_limit_{kDebugLines}, loss_limit_{kDebugLines}, policy_limit_{kDebugLines};
  std::int64_t bad_magic_ = 0, bad_version_ = 0;  // values of these counters when they were last logged
  std::int64_t refused_again_ns_ = 0;
  bool policy_failure_logged_ = false;
};

}  // namespace weft::engine
