// A small deterministic network in which real stacks send to each other over shared bottlenecks: where policies are
// seen at work, and where an account kept beside the core checks what they may have in flight. Reads no clock and no
// entropy; a run is its plan, and a plan holds its seed.
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

// What changes on a path at a time. Negative: stays as it is.
struct PathChange {
  i64 at_ns = 0;
  u32 path = 0;
  i64 bytes_per_s = -1;
  i64 delay_ns = -1;
  double loss = -1;
  int up = -1;  // 0: swallows everything, both ways; 1: carries again
};

// Messages of one size, one after the other, `ahead` of them posted at a time.
struct FlowPlan {
  u32 from = 0, to = 1;  // hosts; one that sends never receives
  i64 start_ns = 0;
  i64 stop_ns = -1;  // closed then, whatever is outstanding; -1: never
  u64 message_bytes = 1 << 20;
  u64 messages = 0;  // 0: as many as there is time for
  u32 ahead = 4;
};

// Times are relative to the beginning of the run.
struct ArenaPlan {
  u64 seed = 1;
  u16 segment_bytes = 4160;               // header included
  std::vector<LinkConfig> paths;          // shared by all flows, towards the receivers
  double ack_loss = 0;                    // the way back has the path's delay and no queue
  LinkConfig sender_port, receiver_port;  // of each host; without a rate and a delay there is none
  std::vector<PathChange> changes;        // in any order
  std::vector<FlowPlan> flows;
  i64 window_bytes_max = 16 << 20;
  i64 rto_ns_min = 1'000'000;
  i64 rto_ns_max = 1'000'000'000;
  i64 port_buffer_bytes = 64 << 20;
  i64 link_bytes_per_s = 0;  // what hosts are told of their ports
  i64 limit_ns = 1'000'000'000;
  i64 measure_from_ns = 0;  // goodput and fairness count from then on
  i64 trace_ns = 0;         // between samples; 0: no trace
  core::PolicyChoice window, path, loss, credit;
  u64 recording_bytes_max = 0;  // of a whole recording (native/core/recording.h); 0: none
};

struct FlowReport {
  i64 delivered_bytes = 0;  // distinct payload, whole run
  double goodput_bytes_per_s = 0;
  i64 messages = 0;
  i64 finished_ns = -1;                        // when the last planned message was whole; -1: not
  i64 message_ns_p50 = 0, message_ns_p99 = 0;  // from posting the send to the last byte's arrival
  i64 copies_max = 0;                          // of one segment
  i64 copies_beyond_window = 0;                // of segments_resent: those that left with a full window in flight
  core::FlowCounters sent;
  i64 segments_duplicate = 0;  // that arrived again
};

struct PathTotals {
  LinkTotals forward, back;
  i64 queue_bytes_p99 = 0;  // as arriving datagrams saw it
};

struct PortTotals {
  u32 host = 0;
  LinkTotals in;
  i64 queue_bytes_p99 = 0;
};

// One row a sample, one column a flow (or path).
struct Trace {
  std::vector<i64> at_ns;
  std::vector<i64> window_bytes, inflight_bytes, pacing_bytes_per_s, delivered_bytes;  // by flow
  std::vector<i64> queue_bytes, path_bytes;                                            // by path; what it has delivered
};

struct ArenaReport {
  std::string violation;  // the first; empty: none
  i64 violations = 0;
  u64 fingerprint = 0;
  i64 ended_ns = 0;
  i64 steps = 0;
  double jain = 0;  // of the flows' goodput
  double goodput_bytes_per_s = 0;
  i64 message_ns_p50 = 0, message_ns_p99 = 0;
  i64 policies_failed = 0;
  std::string policy_failure;  // the first; empty: none
  i64 storage_bytes_max = 0;
  std::vector<FlowReport> flows;
  std::vector<PathTotals> paths;
  std::vector<PortTotals> ports;  // of hosts that receive; empty without a receiver_port
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
  // What is wrong with a plan, in words; empty when it can be run.
  static std::string complaint(const ArenaPlan& plan);

  // Everything that is due next. False at the limit, when all planned messages are through, or when nothing is left.
  bool step();
  ArenaReport run();
  ArenaReport report();
  i64 now_ns() const noexcept { return now_ns_ - kBeginNs; }
  core::Stack& stack(u32 host);
  const Link& path(u32 index) const;
  std::size_t headers_in_use() const noexcept { return headers_.in_use(); }

 private:
  // Far from zero, as real clocks are: "never yet" and "at the beginning" must not look alike.
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
  core::TimerHeap agenda_;   // ids: hosts, then links, then flows' starts and stops, then changes, then the sampler
  std::vector<Link> links_;  // sender ports, receiver ports, paths forward, paths back
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<u32> touched_;
  std::vector<std::unique_ptr<core::DecisionBuffer>> recorders_;  // one a host, into report_.recording
  std::unique_ptr<core::TxBurst> burst_;
  u32 links_at_ = 0, starts_at_ = 0, stops_at_ = 0, changes_at_ = 0, sampler_ = 0, measurer_ = 0;
  u32 receiver_ports_ = 0, forward_ = 0, back_ = 0;  // where these kinds begin in links_
  i64 now_ns_ = kBeginNs;
  std::size_t unfinished_ = 0;  // flows with planned messages to come
  bool endless_ = false;        // some flow has no planned end
  ArenaReport report_;
};

ArenaReport run_arena(const ArenaPlan& plan);

}  // namespace weft::sim
