// A host of the fabric: a real stack, its ports, and the transfers that begin and end there. It handles the packets of
// a window in order, and lets the stack send whenever a port is free.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "native/sim/fabric/fabric_calendar.h"
#include "native/sim/fabric/fabric_net.h"
#include "native/sim/fabric/fabric_trace.h"
#include "native/sim/fabric/fabric_work.h"

namespace weft::sim {

class FabricChecks;
class FabricShard;
class FabricTelemetry;

// State that the hosts of one shard use one after another, and the counters that they share.
struct FabricShared {
  const FabricPlan* plan = nullptr;
  FabricNet* net = nullptr;
  FabricWork* work = nullptr;
  FabricShard* sink = nullptr;
  FabricPacketPool* packets = nullptr;
  core::TxBurst* burst = nullptr;
  FabricChecks* checks = nullptr;        // null: the run is not checked
  FabricTelemetry* telemetry = nullptr;  // null: no policy of the run reads telemetry
  i64 data_packets = 0;
  i64 received = 0, sent = 0;  // number of transfers received and sent
  u32 begun = 0;               // number of transfers that may send, without local events
  i64 policies_failed = 0;
  std::string policy_failure;  // the first failure of a policy; empty: none
  std::string failure;         // the first failure of a flow or a peer; empty: none
};

// Handles an event that is not a packet for the node: a port change, a PFC frame, or a wake-up.
void handle_special(FabricShared* shared, const FabricDue& due);

class FabricHost {
 public:
  static constexpr i64 kBeginNs = kFabricBeginNs;
  static constexpr i64 now_ns_of(i64 at_ps) noexcept { return kBeginNs + at_ps / 1000; }

  // `link_bytes_per_s`: sum of the rates of the host's ports. The stack is told this rate unless the plan sets another.
  FabricHost(const FabricPlan& plan, i64 link_bytes_per_s, u32 index);

  core::Stack& stack() noexcept { return stack_; }
  void add_peer(u32 at, u32 host);
  void add_flow(u32 at, u32 connection);
  void add_transfer(u32 transfer, i64 start_ns);  // adds a transfer without dependencies
  // Schedules the first wake-up, after setup. `ports`: the host's ports.
  void begin(std::span<FabricPort> ports) noexcept;
  // Starts recording a trace of this host: its events, its paths, and the transfers that it sends. The last go to
  // `transfers`, which is indexed by transfer.
  void record(const FabricPlan& plan, const FabricWork& work, std::vector<TransferTrace>* transfers) {
    trace_ = std::make_unique<FabricTrace>(plan, index_, &stack_, work, peers_, connections_, transfers);
  }
  const FabricTrace* trace() const noexcept { return trace_.get(); }  // null: this host records no trace
  // Posts the first receives of a connection that ends at this host.
  void post_receives(FabricShared* shared, u32 connection, i64 now_ps);

  // Handles all events of this host before `end_ps`; `dues` are its packets in order of time, and at `wake_ps` it wakes
  // up even if nothing is due. Afterwards its ports have sent all packets that could be sent before `end_ps`.
  void handle(FabricShared* shared, const FabricDue* dues, std::size_t count, i64 wake_ps, i64 end_ps);
  // Prefetch what handle() will access: call them in this order, with work for the processor in between.
  void prefetch() const noexcept {
    stack_.prefetch();
    core::prefetch(&index_, this + 1);
  }
  void prefetch_lists() const noexcept {
    stack_.prefetch_lists();
    __builtin_prefetch(peers_.data());
  }
  void prefetch_flows() const noexcept { stack_.prefetch_flows(); }
  void prefetch_peers() const noexcept { stack_.prefetch_peers(); }
  void prefetch_records() const noexcept { stack_.prefetch_records(); }
  void prefetch_flow_of(const FabricPacket& packet) const noexcept { stack_.prefetch_flow_of(packet.header()); }
  void prefetch_for(const FabricPacket& packet) const noexcept {
    stack_.prefetch_for(packet.header(), packet.header_bytes);
  }
  // When handle() must be called even if no packet arrives; kNever: not needed.
  i64 next_ps() const noexcept { return self_ps_; }
  i64 pending_ps = core::kNever;  // time of this host's wake-up in the calendar
  u64 fingerprint() const noexcept { return fingerprint_; }

 private:
  struct Start {
    i64 at_ps;
    u32 transfer;
  };
  static bool later(const Start& a, const Start& b) noexcept {
    return a.at_ps != b.at_ps ? a.at_ps > b.at_ps : a.transfer > b.transfer;
  }
  void mix(u64 value) noexcept {
    fingerprint_ = (fingerprint_ ^ value) * 0x100000001B3u;
    fingerprint_ ^= fingerprint_ >> 29;
  }
  void deliver(FabricShared* shared, FabricPacket* packet, i64 now_ps);
  void send(FabricShared* shared, i64 now_ps);
  void pump(FabricShared* shared, i64 now_ps);
  bool may_send_data(FabricShared* shared, i64 now_ps);
  i64 idle_ps(i64 now_ps) const noexcept;
  void send_out(FabricShared* shared, i64 now_ps);
  void drain_events(FabricShared* shared, i64 now_ps);
  void fail(FabricShared* shared, const char* what, Status status);
  void on_sent(FabricShared* shared, u32 transfer, i64 now_ps);
  void on_placed(FabricShared* shared, FabricReceive& receive, i64 now_ps);
  void on_local(FabricShared* shared, u32 transfer, i64 now_ps);
  void on_happened(FabricShared* shared, u32 transfer, i64 now_ps);
  void schedule(u32 transfer, i64 at_ps);
  void begin_due(FabricShared* shared, i64 now_ps);
  void post(FabricShared* shared, u32 connection, i64 now_ps);

  core::Stack stack_;
  std::span<FabricPort> ports_;
  u32 index_;
  bool data_waits_ = false;  // the stack has more to send than the ports accept now
  i64 self_ps_ = core::kNever;
  u64 fingerprint_ = 0;
  std::vector<u32> peers_;        // index of a peer in the stack -> its host number
  std::vector<u32> connections_;  // index of a flow in the stack -> its connection
  std::vector<Start> starts_;     // start times of transfers that wait for them: a heap, earliest first
  std::unique_ptr<FabricTrace> trace_;
};

}  // namespace weft::sim
