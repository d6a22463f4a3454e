// The rig (two-endpoint test harness): two stacks with a common virtual clock, a lossy link between them, and a
// simulated caller that checks everything. A seed determines the run. The rig owns the buffers that it passes to the
// stacks, so that it can detect late writes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "tests/native/rig/lossy_link.h"

namespace weft::sim {

// Replaces a policy on the live flows of one end.
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
  u32 messages = 8;  // number of messages in each direction
  u64 message_bytes_max = 65536;
  double zero_fraction = 0.1;   // fraction of the messages that are empty
  double small_fraction = 0.3;  // fraction of the messages that are at most eager_bytes long
  bool both_ways = true;
  bool send_too_long = false;  // the last message of end 0 is longer than its receive
  i64 post_gap_ns_max = 200'000;
  i64 close_at_ns = -1;            // when end 0 closes, even with requests outstanding; -1: when all are done
  i64 dies_at_ns = -1;             // when end 1 stops for good; -1: never
  i64 limit_ns = 120'000'000'000;  // virtual time after which a run counts as hung
  u64 eager_bytes = 4096;
  u64 eager_slots = 4;
  i64 window_bytes_max = 1 << 20;
  // 25 times rto_ns_max: even with 30 % loss, a living peer practically never stays silent this long by chance.
  i64 peer_silence_ns = 5'000'000'000;
  i64 rto_ns_max = 200'000'000;
  i64 port_buffer_bytes = 1 << 20;
  // Advertise receives longer than eager_bytes with a memory window, and write arriving segments through it.
  bool windows = false;
  bool windows_outlive = false;  // a planted defect: memory windows stay open after their message is done
  // Fractions of the sends and receives whose bytes pass through small bounce buffers, as for GPU memory.
  double staged_sends = 0.0, staged_receives = 0.0;
  // The link reads payload when it is delivered instead of when it is sent, like a NIC that processes a request late.
  bool late_reads = false;
  // End 1 has accepted end 0 as a stranger whose request had this many bytes, so it limits what it sends before the
  // first answer; -1: end 0 is no stranger.
  i64 open_bytes = -1;
  core::PolicyChoice window, path, loss, credit;
  LinkFaults faults;
  std::vector<PathOutage> outages;
  bool search_size = false;  // both ends search for the largest segment that the paths carry
  std::vector<SizeLimit> limits;
  std::vector<PolicySwap> swaps;  // in order of time
};

struct RunReport {
  std::string violation;  // number of the violated invariant and what was seen; empty: none violated
  bool hung = false;      // P-2 is violated: requests were outstanding at the time limit
  i64 early_bytes = 0;    // bytes that end 1 sent to a stranger before its first answer
  u64 fingerprint = 0;    // hash of everything delivered and completed, in order
  i64 ended_ns = 0;
  i64 completed = 0, failed = 0;  // number of requests of both ends
  i64 corrupt_messages = 0;
  i64 writes = 0;          // number of segments written through a memory window
  i64 writes_refused = 0;  // number of writes refused because the window was closed
  core::FlowCounters counters[2];
  telemetry::EngineCounters stack[2];
  LinkCounters link;
  i64 policies_failed = 0;
  i64 segment_bytes_last[2] = {};  // segment size of each end at the end of the run
  i64 size_changes = 0;
  i64 storage_bytes_max = 0;
  std::vector<i64> path_bytes;  // bytes sent by end 0 on each path
};

class Rig {
 public:
  explicit Rig(const Schedule& schedule);
  ~Rig();

  // Advances virtual time to the next event and handles it. Returns false when no event is left.
  bool step();
  bool finished() const noexcept { return outstanding_ == 0 && unposted_ == 0; }
  i64 now_ns() const noexcept { return now_ns_; }
  const std::string& violation() const noexcept { return report_.violation; }
  i64 outstanding() const noexcept { return outstanding_; }
  // Runs until all requests are done or failed and both ends are closed, or until the time limit; then checks the final
  // state.
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
  bool settled() const noexcept;  // whether the run can end: all flows are closed and healed paths had time to recover
  void check_burst(int end);
  void check_early_bytes(int end);
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

// Runs a schedule to its end and returns the report.
RunReport run_schedule(const Schedule& schedule);

// The policies from which generated schedules choose; an empty list means `fixed`.
struct PolicyMenu {
  std::vector<core::PolicyChoice> window, path, loss, credit;
};
// Generates a schedule (faults, number of paths, flows and messages) from a seed. The same seed gives the same
// schedule.
Schedule draw_schedule(u64 seed, const PolicyMenu& menu);
// The kinds of faults in a schedule, as bits.
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
