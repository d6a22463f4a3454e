// The arena (dumbbell simulator): a small deterministic network in which real stacks send over shared bottlenecks. It
// shows how policies behave, and compares the core's count of bytes in flight with an independent count. The plan,
// which includes the seed, determines the run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/core/recording.h"
#include "native/core/stack.h"
#include "native/core/timer_heap.h"
#include "native/sim/link.h"
#include "native/sim/wire_ledger.h"

namespace weft::sim {

// A change of a path at a given time. A negative value leaves that property unchanged.
struct PathChange {
  i64 at_ns = 0;
  u32 path = 0;
  i64 bytes_per_s = -1;
  i64 delay_ns = -1;
  double loss = -1;
  int up = -1;  // 0: the path drops everything in both directions; 1: it works again
};

// A flow that sends messages of one size one after another, with `ahead` of them posted at a time.
struct FlowPlan {
  u32 from = 0, to = 1;  // host numbers; a host either sends or receives
  i64 start_ns = 0;
  i64 stop_ns = -1;  // time at which the flow is closed, even with messages outstanding; -1: never
  u64 message_bytes = 1 << 20;
  u64 messages = 0;  // number of messages; 0: as many as fit in the run's time limit
  u32 ahead = 4;
};

// The description of a run. Times are relative to its beginning.
struct ArenaPlan {
  u64 seed = 1;
  u16 segment_bytes = 4160;       // size of a segment, including the header
  std::vector<LinkConfig> paths;  // paths towards the receivers, shared by all flows
  // Loss probability in the reverse direction of each path, which has the path's delay and no queue.
  double ack_loss = 0;
  LinkConfig sender_port, receiver_port;  // ports of each host; without rate and delay, hosts have no ports
  std::vector<PathChange> changes;        // changes of the paths, in any order
  std::vector<FlowPlan> flows;
  i64 window_bytes_max = core::defaults::kWindowBytesMax;
  i64 rto_ns_min = core::defaults::kRtoNsMin;
  i64 rto_ns_max = core::defaults::kRtoNsMax;
  i64 port_buffer_bytes = 64 << 20;
  i64 link_bytes_per_s = 0;  // rate of the hosts' ports as policies see it; 0: unknown
  i64 limit_ns = 1'000'000'000;
  i64 measure_from_ns = 0;  // goodput and fairness are measured from this time on
  i64 trace_ns = 0;         // sampling interval; 0: no trace
  core::PolicyChoice window, path, loss, credit;
  u64 recording_bytes_max = 0;  // size limit of a recording (native/core/recording.h); 0: none
};

struct FlowReport {
  i64 delivered_bytes = 0;  // distinct payload bytes delivered in the whole run
  double goodput_bytes_per_s = 0;
  i64 messages = 0;
  i64 finished_ns = -1;                        // when the last planned message was complete; -1: never
  i64 message_ns_p50 = 0, message_ns_p99 = 0;  // from posting the send to the arrival of the last byte
  i64 copies_max = 0;                          // largest number of retransmissions of one segment
  // Number of retransmissions sent while more than a window was in flight.
  i64 copies_beyond_window = 0;
  core::FlowCounters sent;
  i64 segments_duplicate = 0;  // number of segments received more than once
};

struct PathTotals {
  LinkTotals forward, back;
  i64 queue_bytes_p99 = 0;  // queue length that arriving datagrams find
};

struct PortTotals {
  u32 host = 0;
  LinkTotals in;
  i64 queue_bytes_p99 = 0;
};

// Samples over time: one row per sample, one column per flow or path.
struct Trace {
  std::vector<i64> at_ns;
  std::vector<i64> window_bytes, inflight_bytes, pacing_bytes_per_s, delivered_bytes;  // one column per flow
  std::vector<i64> queue_bytes, path_bytes;  // one column per path; path_bytes: bytes delivered
};

struct ArenaReport {
  std::string violation;  // the first violation; empty: none
  i64 violations = 0;
  u64 fingerprint = 0;
  i64 ended_ns = 0;
  i64 steps = 0;
  double jain = 0;  // Jain's fairness index of the flows' goodput
  double goodput_bytes_per_s = 0;
  i64 message_ns_p50 = 0, message_ns_p99 = 0;
  i64 policies_failed = 0;
  std::string policy_failure;  // the first failure of a policy; empty: none
  i64 storage_bytes_max = 0;
  std::vector<FlowReport> flows;
  std::vector<PathTotals> paths;
  std::vector<PortTotals> ports;  // ports of the receiving hosts; empty if the plan has no receiver_port
  Trace trace;
  std::vector<std::byte> recording;
};

struct Message;

class Arena {
 public:
  explicit Arena(const ArenaPlan& plan);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  static bool is_there(const LinkConfig& port) noexcept { return port.bytes_per_s > 0 || port.delay_ns > 0; }
  // Returns the condition that an invalid plan does not meet; empty if the plan is valid.
  static std::string complaint(const ArenaPlan& plan);

  // Advances time to the next event and handles all events of that time. Returns false at the time limit, when all
  // planned messages are done, or when no event is left.
  bool step();
  ArenaReport run();
  ArenaReport report();
  i64 now_ns() const noexcept { return now_ns_ - kBeginNs; }
  core::Stack& stack(u32 host);
  const Link& path(u32 index) const;
  std::size_t headers_in_use() const noexcept { return headers_.in_use(); }

 private:
  // Virtual time at the beginning. Like the time of a real clock it is not zero, so that "never" (0) differs from "at
  // the beginning".
  static constexpr i64 kBeginNs = 1'000'000'000;

  struct Flow;
  struct Pair;
  struct Host;
  // Defined in arena_setup.cc:
  void make_links();
  void make_hosts();
  void make_flow(u32 index);
  void record();
  Pair& pair_of(u32 from, u32 to);
  core::StackConfig stack_config(u32 host) const;
  // Defined in arena.cc:
  void wake(u32 id);
  void touch(u32 host);
  void pump(u32 host);
  void drain_events(u32 host);
  void on_placed(Message& message);
  void post(Flow& flow);
  void send_out(u32 host, const core::TxBurst& burst);
  void offer(u32 link, const Packet& packet);
  void drain_link(u32 link);
  void deliver(const Packet& packet);
  void apply(const PathChange& change);
  // Defined in arena_checks.cc:
  void violate(const char* rule, const std::string& what);
  void check_burst(u32 host, const core::TxBurst& burst);
  void check_host(u32 host);
  void check_ack(u32 host, const Packet& packet);
  void sample();
  void begin_measuring();
  void mix(u64 value) noexcept;

  ArenaPlan plan_;
  HeaderPool headers_;
  core::TimerHeap agenda_;   // timers of hosts, links, starts and stops of flows, changes, and samples
  std::vector<Link> links_;  // in this order: sender ports, receiver ports, forward paths, reverse paths
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<u32> touched_;
  std::vector<std::unique_ptr<core::DecisionBuffer>> recorders_;  // one per host; they write to report_.recording
  std::unique_ptr<core::TxBurst> burst_;
  u32 links_at_ = 0, starts_at_ = 0, stops_at_ = 0, changes_at_ = 0, sampler_ = 0, measurer_ = 0;
  u32 receiver_ports_ = 0, forward_ = 0, back_ = 0;  // index in links_ of the first link of each kind
  i64 now_ns_ = kBeginNs;
  std::size_t unfinished_ = 0;  // number of flows that have planned messages left
  bool endless_ = false;        // set if some flow has no planned end
  ArenaReport report_;
};

ArenaReport run_arena(const ArenaPlan& plan);

}  // namespace weft::sim
