// What a traced host records of its messages, paths and events, as a real process records it in its trace. A host that
// is not traced has no such object, and so no cost.
#pragma once

#include <array>
#include <vector>

#include "native/core/stack.h"
#include "native/sim/fabric/fabric_work.h"

namespace weft::sim {

// How a transfer crossed the network. Times are of the virtual clock, -1: not yet.
struct TransferTrace {
  static constexpr std::size_t kPaths = 33;  // counters: one for each of the paths 0 to 31, and one for all other paths

  i64 first_ns = -1;  // when its first segment was sent
  i64 last_ns = -1;   // when its last segment was sent for the first time
  u32 segments = 0;   // segments sent, resent ones included
  u32 resent = 0;
  std::array<u32, kPaths> by_path{};  // segments sent on each path
};

// The state of a path of a host at one moment. Sums count from the beginning of the run.
struct PathTrace {
  i64 at_ns = 0, rtt_ns = 0;
  i64 bytes_sent = 0, segments_sent = 0, segments_lost = 0;
  u32 host = 0, peer = 0;  // hosts at both ends
  u32 path = 0, usable = 0;
};

// An event of a path, a flow or a peer. `kind`: a number of core::Event::Kind, see event_name().
struct EventTrace {
  i64 at_ns = 0;
  u64 value = 0;
  u32 host = 0, peer = 0;  // peer: the host at the other end, core::kNone: none
  u32 stream = 0;          // number of the connection, core::kNone: none
  u32 path = 0, kind = 0, status = 0;
};

// The event's name, the same as in traces of real processes; null: events of this kind are not recorded.
const char* event_name(u32 kind) noexcept;

class FabricTrace final : public core::TraceSink {
 public:
  // `peers` and `connections` give, by index in the stack, the host of a peer and the connection of a flow. All
  // arguments must outlive the object.
  FabricTrace(const FabricPlan& plan, u32 host, core::Stack* stack, const FabricWork& work,
              const std::vector<u32>& peers, const std::vector<u32>& connections,
              std::vector<TransferTrace>* transfers);
  ~FabricTrace() override { stack_->trace().unsubscribe(this); }
  FabricTrace(const FabricTrace&) = delete;
  FabricTrace& operator=(const FabricTrace&) = delete;

  void on_event(i64 now_ns, const core::Event& event) noexcept override;
  // Records all paths that have carried something since they were last recorded, at most once an interval.
  void look_at_paths(i64 at_ns);

  const std::vector<PathTrace>& paths() const noexcept { return paths_; }
  const std::vector<EventTrace>& events() const noexcept { return events_; }
  i64 dropped() const noexcept { return dropped_; }

 private:
  static constexpr std::size_t kEventsMax = 1 << 16;  // limit of recorded events of one host

  TransferTrace* sent(const core::Event& event) noexcept;
  void find_twins();
  telemetry::PathCounters counters(u32 peer, u32 path) const noexcept;

  const FabricPlan& plan_;
  const u32 host_;
  core::Stack* stack_;
  const FabricWork& work_;
  const std::vector<u32>& peers_;
  const std::vector<u32>& connections_;
  std::vector<TransferTrace>* transfers_;  // traces of all transfers; this host writes those that it sends
  std::vector<PathTrace> paths_;
  std::vector<EventTrace> events_;
  std::vector<std::array<i64, core::kMaxPaths>> segments_seen_;  // by peer and path: segments sent when last recorded
  // By peer: the next peer that is the same host, with another path policy; core::kNone: none. Their paths take the
  // same links and are recorded together, at the first of them.
  std::vector<u32> next_twin_;
  std::vector<bool> is_first_;
  i64 next_ns_ = 0, dropped_ = 0;
};

}  // namespace weft::sim
