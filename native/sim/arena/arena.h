// The arena (dumbbell simulator): a small deterministic network in which real stacks send over shared bottlenecks. It
// shows policies at work, and checks their bytes in flight against a count kept independently of the core. A run is
// determined by its plan, which includes the seed.
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

// A change of a path at a given time. Negative values leave a property unchanged.
struct PathChange {
  i64 at_ns = 0;
  u32 path = 0;
  i64 bytes_per_s = -1;
  i64 delay_ns = -1;
  double loss = -1;
  int up = -1;  // 0: drops everything in both directions; 1: works again
};

// A flow: messages of one size in sequence, `ahead` of them posted at a time.
struct FlowPlan {
  u32 from = 0, to = 1;  // hosts; a host either sends or receives
  i64 start_ns = 0;
  i64 stop_ns = -1;  // when to close it, whatever is outstanding; -1: never
  u64 message_bytes = 1 << 20;
  u64 messages = 0;  // 0: as many as time allows
  u32 ahead = 4;
};

// Times are relative to the beginning of the run.
struct ArenaPlan {
  u64 seed = 1;
  u16 segment_bytes = 4160;               // including the header
  std::vector<LinkConfig> paths;          // shared by all flows, towards the receivers
  double ack_loss = 0;                    // loss on the way back, which has the path's delay and no queue
  LinkConfig sender_port, receiver_port;  // of each host; without rate and delay there is no port
  std::vector<PathChange> changes;        // in any order
  std::vector<FlowPlan> flows;
  i64 window_bytes_max = core::defaults::kWindowBytesMax;
  i64 rto_ns_min = core::defaults::kRtoNsMin;
  i64 rto_ns_max = core::defaults::kRtoNsMax;
  i64 port_buffer_bytes = 64 << 20;
  i64 link_bytes_per_s = 0;  // the hosts' knowledge of their ports
  i64 limit_ns = 1'000'000'000;
  i64 measure_from_ns = 0;  // start of the interval for goodput and fairness
  i64 trace_ns = 0;         // sampling interval; 0: no trace
  core::PolicyChoice window, path, loss, credit;
  u64 recording_bytes_max = 0;  // size limit of a recording (native/core/recording.h); 0: none
};

struct FlowReport {
  i64 delivered_bytes = 0;  // distinct payload of the whole run
  double goodput_bytes_per_s = 0;
  i64 messages = 0;
  i64 finished_ns = -1;                        // when the last planned message was complete; -1: not reached
  i64 message_ns_p50 = 0, message_ns_p99 = 0;  // from posting the send to the last byte's arrival
  i64 copies_max = 0;                          // of one segment
  i64 copies_beyond_window = 0;                // resends that left with more than a window in flight
  core::FlowCounters sent;
  i64 segments_duplicate = 0;  // received more than once
};

struct PathTotals {
  LinkTotals forward, back;
  i64 queue_bytes_p99 = 0;  // as seen by arriving datagrams
};

struct PortTotals {
  u32 host = 0;
  LinkTotals in;
  i64 queue_bytes_p99 = 0;
};

// One row per sample, one column per flow or path.
struct Trace {
  std::vector<i64> at_ns;
  std::vector<i64> window_bytes, inflight_bytes, pacing_bytes_per_s, delivered_bytes;  // per flow
  std::vector<i64> queue_bytes, path_bytes;  // per path; path_bytes: delivered
};

struct ArenaReport {
  std::string violation;  // the first one; empty: none
  i64 violations = 0;
  u64 fingerprint = 0;
  i64 ended_ns = 0;
  i64 steps = 0;
  double jain = 0;  // Jain's fairness index of the flows' goodput
  double goodput_bytes_per_s = 0;
  i64 message_ns_p50 = 0, message_ns_p99 = 0;
  i64 policies_failed = 0;
  std::string policy_failure;  // the first one; empty: none
  i64 storage_bytes_max = 0;
  std::vector<FlowReport> flows;
  std::vector<PathTotals> paths;
  std::vector<PortTotals> ports;  // of receiving hosts; empty without a receiver_port
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
  // What a valid plan needs and this one lacks, in words; empty if it is valid.
  static std::string complaint(const ArenaPlan& plan);

  // Handles all events of the next time at which there are any. False at the limit, when all planned messages are done,
  // or when no event is left.
  bool step();
  ArenaReport run();
  ArenaReport report();
  i64 now_ns() const noexcept { return now_ns_ - kBeginNs; }
  core::Stack& stack(u32 host);
  const Link& path(u32 index) const;
  std::size_t headers_in_use() const noexcept { return headers_.in_use(); }

 private:
  // Not zero, like real clocks, so that "never" and "at the beginning" are different values.
  static constexpr i64 kBeginNs = 1'000'000'000;

  struct Flow;
  struct Pair;
  struct Host;
  // arena_setup.cc
  void make_links();
  void make_hosts();
  void make_flow(u32 index);
  void record();
  Pair& pair_of(u32 from, u32 to);
  core::StackConfig stack_config(u32 host) const;
  // arena.cc
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
  // arena_checks.cc
  void violate(const char* rule, const std::string& what);
  void check_burst(u32 host, const core::TxBurst& burst);
  void check_host(u32 host);
  void check_ack(u32 host, const Packet& packet);
  void sample();
  void begin_measuring();
  void mix(u64 value) noexcept;

  ArenaPlan plan_;
  HeaderPool headers_;
  core::TimerHeap agenda_;   // ids: hosts, links, starts and stops of flows, changes, sampler
  std::vector<Link> links_;  // sender ports, receiver ports, forward paths, back paths
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<u32> touched_;
  std::vector<std::unique_ptr<core::DecisionBuffer>> recorders_;  // one per host, writing to report_.recording
  std::unique_ptr<core::TxBurst> burst_;
  u32 links_at_ = 0, starts_at_ = 0, stops_at_ = 0, changes_at_ = 0, sampler_ = 0, measurer_ = 0;
  u32 receiver_ports_ = 0, forward_ = 0, back_ = 0;  // where these kinds begin in links_
  i64 now_ns_ = kBeginNs;
  std::size_t unfinished_ = 0;  // flows with planned messages left
  bool endless_ = false;        // some flow has no planned end
  ArenaReport report_;
};

ArenaReport run_arena(const ArenaPlan& plan);

}  // namespace weft::sim
