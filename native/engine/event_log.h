// Logs an engine's events about peers, paths, losses and policies, with a limited number of lines per time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "native/core/stack.h"
#include "native/engine/log_limit.h"
#include "native/engine/log_text.h"
#include "native/engine/path_log.h"

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
  void name_peer(std::uint32_t peer, std::vector<std::string> addresses) {
    paths_.forget(peer);  // drops what is known of the peer that had the index before
    names_.name(peer, std::move(addresses));
  }
  void on_event(std::int64_t now_ns, const core::Event& event) noexcept override;
  // Logs paths that went down or came back, and packets that were refused since the last such line.
  void on_received(std::int64_t now_ns) noexcept {
    if (now_ns >= paths_.due_ns()) paths_.write(now_ns);
    const telemetry::EngineCells& seen = stack_->counters();
    const bool more = seen.bad_magic != bad_magic_ || seen.bad_version != bad_version_;
    if (more && now_ns >= refused_again_ns_) on_refused(now_ns);
  }

  // When on_received() must be called at the latest to log changes of paths, even if no datagram arrives before.
  std::int64_t due_ns() const noexcept { return paths_.due_ns(); }

 private:
  static constexpr std::int64_t kDebugLines = 32;  // limit of each kind of debug line per LogLimit::kIntervalNs

  void on_refused(std::int64_t now_ns) noexcept;
  void segment_size(const core::Event& event);
  void policy_failed(policy::Family family);
  void debug(std::int64_t now_ns, const core::Event& event);
  std::string peer_text(std::uint32_t peer) const { return names_.peer_text(peer); }
  std::string path_text(std::uint32_t peer, std::uint8_t path) const { return names_.path_text(peer, path); }

  core::Stack* stack_;
  PeerNames names_;
  PathLog paths_{stack_, &names_};
  LogLimit probe_limit_{kDebugLines}, peer_limit_{kDebugLines}, loss_limit_{kDebugLines}, policy_limit_{kDebugLines};
  std::int64_t bad_magic_ = 0, bad_version_ = 0;  // values of these counters when they were last logged
  std::int64_t refused_again_ns_ = 0;
  bool policy_failure_logged_ = false;
};

}  // namespace weft::engine
