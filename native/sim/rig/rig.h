// Two stacks, one clock, a lossy link and a caller that checks everything: the protocol's test bench, driven by a seed.
// Owns every buffer it lends to the stacks, so that it can tell a late write; reads no clock and no entropy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "native/sim/rig/lossy_link.h"

namespace weft::sim {

// Another policy on an end's live flows.
struct PolicySwap {
  i64 at_ns = 0;
  int end = 0;
  policy::Family family = policy::Family::window;
  core::PolicyChoice choice;
};

struct Schedule {
  u64 seed = 1;
  u16 paths = 4;
  u16 segment_bytes = 1472;
  u8 stripes = 1;
  u32 messages = 8;  // each way
  u64 message_bytes_max = 65536;
  double zero_fraction = 0.1;   // of messages
  double small_fraction = 0.3;  // at most eager_bytes long
  bool both_ways = true;
  bool send_too_long = false;  // the last message of end 0 is longer than its receive
  i64 post_gap_ns_max = 200'000;
  i64 close_at_ns = -1;            // end 0 closes with whatever is outstanding; -1: after everything is done
  i64 dies_at_ns = -1;             // end 1 falls silent for good
  i64 limit_ns = 120'000'000'000;  // of virtual time: beyond it the run counts as hung
  u64 eager_bytes = 4096;
  u64 eager_slots = 4;
  i64 window_bytes_max = 1 << 20;
  i64 peer_silence_ns = 5'000'000'000;  // 25 timeouts: at 30 % loss silence by chance is out of the question
  i64 rto_ns_max = 200'000'000;
  i64 port_buffer_bytes = 1 << 20;
  // Receives longer than eager_bytes are advertised with a window, and the link writes into it when a segment arrives.
  bool windows = false;
  bool windows_outlive = false;  // a defect to be found: a window stays open after its message is whole
  // Of sends, and of receives: their bytes pass through small rings, as those of device memory do.
  double staged_sends = 0.0, staged_receives = 0.0;
  // The link reads payload when it delivers, not when it is sent: a NIC that gets to a request late.
  bool late_reads = false;
  core::PolicyChoice window, path, loss, credit;
  LinkFaults faults;
  std::vector<PathOutage> outages;
  bool search_size = false;  // both ends find out what the paths carry
  std::vector<SizeLimit> limits;
  std::vector<PolicySwap> swaps;  // in order of time
};

struct RunReport {
  std::string violation;  // empty: every invariant held; otherwise its number and what was seen
  bool hung = false;      // P-2 broken: requests outstanding at the limit
  u64 fingerprint = 0;    // of everything that was delivered and completed, in order
  i64 ended_ns = 0;
  i64 completed = 0, failed = 0;  // requests, both ends
  i64 corrupt_messages = 0;
  i64 writes = 0;          // segments that were written through a window
  i64 writes_refused = 0;  // because the window was closed
  core::FlowCounters counters[2];
  telemetry::EngineCounters stack[2];
  LinkCounters link;
  i64 policies_failed = 0;
  i64 segment_bytes_last[2] = {};  // in force at the end
  i64 size_changes = 0;
  i64 storage_bytes_max = 0;
  std::vector<i64> path_bytes;  // sent by end 0, by path
};

class Rig {
 public:
  explicit Rig(const Schedule& schedule);
  ~Rig();

  // One step of virtual time: the earliest thing that is due. False when nothing will ever happen again.
  bool step();
  bool finished() const noexcept { return outstanding_ == 0 && unposted_ == 0; }
  i64 now_ns() const noexcept { return now_ns_; }
  const std::string& violation() const noexcept { return report_.violation; }
  i64 outstanding() const noexcept { return outstanding_; }
  // Runs to the end (everything done or failed and both sides closed, or the limit) and checks what is left.
  RunReport run();
  RunReport report();

 private:
  struct Transfer;
  struct Side;
  void connect();
  void plan_messages();
  void post_due(int end);
  void stage_due(int end);
  i64 next_stage_ns(int end) const noexcept;
  bool post_send(int end, Transfer& transfer);
  bool post_receive(int end, Transfer& transfer);
  void pump(int end);
  void drain_events(int end);
  void on_send_done(int end, Transfer& transfer);
  void on_received(int end, Transfer& transfer, u64 message_bytes);
  void on_flow_failed(int end, Status status);
  void on_peer_closed(int end, u64 held);
  void fail_outstanding(int end, Status status);
  void close_if_due();
  void swap_if_due();
  i64 next_ns() const noexcept;
  std::vector<std::unique_ptr<Transfer>>& transfers_of(int end);
  bool dead(int end) const noexcept { return end == 1 && schedule_.dies_at_ns >= 0 && now_ns_ >= schedule_.dies_at_ns; }
  void deliver(const Arrival& arrival);
  core::RxDatagram::Body write(const Arrival& arrival);
  bool read_late(const Arrival& arrival) const noexcept { return schedule_.late_reads && !arrival.settled; }
  bool settled() const noexcept;  // nothing is left but time
  void check_burst(int end);
  void violate(const char* invariant, const std::string& what);
  void check_window(int end, u32 remote_flow);
  void check_step();
  void check_end();
  void mix(u64 value) noexcept;

  Schedule schedule_;
  core::Random random_;
  LossyLink link_;
  std::unique_ptr<Side> sides_[2];
  std::unique_ptr<core::TxBurst> burst_;
  i64 now_ns_ = 1'000'000;
  i64 outstanding_ = 0;
  i64 unposted_ = 0;
  std::size_t next_swap_ = 0;
  bool closed_ = false;
  i64 closed_ns_ = 0;
  RunReport report_;
};

// Runs a schedule to its end.
RunReport run_schedule(const Schedule& schedule);

// The policies that drawn schedules choose from; an empty list means `fixed`.
struct PolicyMenu {
  std::vector<core::PolicyChoice> window, path, loss, credit;
};
// A schedule drawn from a seed: which faults, how many paths, flows and messages. The same seed is the same schedule.
Schedule draw_schedule(u64 seed, const PolicyMenu& menu);
// The kinds of fault a schedule holds, as bits in this order.
enum FaultKind : u32 {
  kLoss = 1,
  kReorder = 2,
  kDuplicate = 4,
  kCorrupt = 8,
  kDelay = 16,
  kDeadPath = 32,
  kDeadPeer = 64,
  kReplay = 128,
  kStray = 256,
  kEarlyClose = 512,
  kTooLong = 1024,
  kSwap = 2048,
  kWindows = 4096,
  kLateReads = 8192,
  kStagedSends = 16384,
  kStagedReceives = 32768,
};
u32 fault_kinds(const Schedule& schedule) noexcept;
u64 schedule_hash(const Schedule& schedule) noexcept;

}  // namespace weft::sim
