// The description of a fabric run, in plain values: nodes, one-way links with their queues, routes, transfers and
// dependencies. Nodes 0 to hosts - 1 are hosts, the others are switches.
#pragma once

#include <string>
#include <vector>

#include "native/core/types.h"

namespace weft::sim {

using core::i64;
using i32 = std::int32_t;
using core::u16;
using core::u32;
using core::u64;
using core::u8;

// One direction of a link: a queue at the sending node and the wire behind it.
struct PortPlan {
  u32 from = 0, to = 0;  // node numbers
  i64 bytes_per_s = 0;
  i64 delay_ns = 0;         // propagation delay plus the next switch's delay; at least 1
  i64 queue_bytes_max = 0;  // limit for queued data, including the packet being sent
  // ECN marks by the queue length when a segment leaves: none below mark_from_bytes, all at or above mark_full_bytes,
  // and a proportional share in between. If both are 0, nothing is marked.
  i64 mark_from_bytes = 0, mark_full_bytes = 0;
  double loss = 0;            // loss probability of a packet on the wire
  double bit_error_rate = 0;  // error probability of each bit; a packet with a wrong bit is lost
  // Share of packets that arrive late by up to reorder_ns_max, so that packets sent after them arrive before them.
  double reorder = 0;
  i64 reorder_ns_max = 0;
  // Size of a token bucket: an idle port saves up this many bytes, to send them at once later. 0: no token bucket.
  i64 burst_bytes = 0;
};

// A change of a port at a given time. A negative value leaves that property unchanged.
struct PortChange {
  i64 at_ns = 0;
  u32 port = 0;
  i32 up = -1;  // 0: packets in the queue and new packets are lost; 1: the port works again
  i64 bytes_per_s = -1;
  double loss = -1;
};

// One message of a connection. The transfers with equal from, to and stream form a connection, and are sent in the
// order in which they are listed. A transfer from a host to itself is a local event: it has no bytes, uses no
// connection, and finishes as soon as it starts. A computation is the delay between two local events.
struct TransferPlan {
  u32 from = 0, to = 0;  // host numbers
  u64 bytes = 0;
  i64 start_ns = 0;  // the transfer starts at this time or later
  u32 stream = 0;    // different streams are different connections
  u32 job = 0;       // number of a job, used only in reports

  bool is_local() const noexcept { return from == to; }
};

// Transfer `after` starts delay_ns after transfer `before` has finished. `before` must finish at the host where `after`
// starts: either that host receives it, or that host sends it and learns that it is acknowledged.
struct DependencyPlan {
  u32 before = 0, after = 0;
  i64 delay_ns = 0;
};

// From at_ns on, packets that `from` sends to `to` on path `path` take the links of path number `takes`, as if the path
// used that path's pair of UDP ports. The path's number in packets stays.
struct PathChoice {
  i64 at_ns = 0;
  u32 from = 0, to = 0;  // host numbers
  u32 path = 0, takes = 0;
};

// The policies of some connections, instead of the plan's own. An empty window, path or loss policy is the plan's own;
// an empty credit policy is none.
struct PolicySetPlan {
  core::PolicyChoice window, path, loss, credit;
};

enum class Ecmp : u8 {
  hashed,  // by a hash of hosts, path number and switch, like real routers
  // By path number: path p takes route p. The host and each switch select a port by one digit of p, so two paths share
  // a route only if there are more paths than routes.
  even,
  // The switch selects the port of a packet when it arrives, among those whose links are up: the one that sends
  // everything it holds soonest.
  adaptive,
  // Likewise, among two ports drawn at random and the best of the last draw (DRILL(2, 1), SIGCOMM 2017, section 3.2).
  drill,
};
inline bool by_queues(Ecmp ecmp) noexcept { return ecmp == Ecmp::adaptive || ecmp == Ecmp::drill; }

struct FabricPlan {
  u64 seed = 1;
  u32 threads = 1;
  bool check = false;  // check the invariants P-1 to P-8 during the run
  i64 limit_ns = 1'000'000'000;

  // The network. route[switch * groups + group_of[host]] is the number of the set of ports through which the switch
  // reaches the host; -1: there is no route. A host that is linked to the switch needs none.
  u32 hosts = 0, switches = 0, groups = 0;
  std::vector<PortPlan> ports;  // sorted by `from`
  std::vector<u32> group_of;    // host -> its group, whose hosts share their routes
  std::vector<i32> route;
  // When switches learn that links went down or up: from route_at_ns[i] on (ascending), they use the i + 1st of the
  // tables of `switches` times `groups` numbers that follow one another in `route`.
  std::vector<i64> route_at_ns;
  // Set s consists of the ports set_ports[set_begin[s]] to set_ports[set_begin[s + 1] - 1].
  std::vector<u32> set_begin;
  std::vector<u32> set_ports;
  std::vector<PortChange> changes;  // sorted by time
  std::vector<PathChoice> choices;  // in any order; of two for the same path and time, the later one in the list counts
  Ecmp ecmp = Ecmp::hashed;
  // Trim a segment if a queue is full: the switch cuts off its payload and forwards its header.
  bool trim = false;
  bool priority = true;                  // send control packets and trimmed headers before data
  i64 header_queue_bytes_max = 1 << 20;  // limit of a port's queue for packets that are sent before data
  // Memory that all queues of a switch share, for data; 0: each queue has its own, of its port's queue_bytes_max. A
  // queue may then hold `buffer_alpha` times the bytes that are free, and queue_bytes_max at most.
  i64 buffer_bytes = 0;
  double buffer_alpha = 1;
  // A switch sends PFC pause and resume frames to a link when its queues hold this many bytes from that link; 0: no
  // PFC.
  i64 pause_bytes = 0, resume_bytes = 0;

  // The transfers, and the dependencies between them.
  std::vector<TransferPlan> transfers;
  std::vector<DependencyPlan> dependencies;

  // The hosts.
  // Delay of a packet between a host's port and its transport, and the largest random delay added to it; packets stay
  // in order.
  i64 host_delay_ns = 0, host_jitter_ns = 0;
  u16 paths = 64;
  u16 segment_bytes = 4160;     // including weft's header of 64 bytes
  u16 wire_overhead_bytes = 0;  // bytes added to every packet on the wire
  u32 burst_bytes_max = 65'536;
  u32 ahead = 4;  // number of messages of a connection that are posted at a time
  // Whether senders know all receives from the start; otherwise receives are advertised over the network.
  bool receives_ready = true;
  i64 rtt_ns = 0;           // round-trip time that senders know at the start; 0: probes measure it
  i64 rtt_expected_ns = 0;  // estimate of the handshake, used until the first sample; 0: none
  i64 ack_bytes = 16'384;
  i64 ack_delay_ns = 10'000;
  i64 window_bytes_max = core::defaults::kWindowBytesMax;
  i64 rto_ns_min = 100'000;  // small, because round trips inside a data center are short
  i64 rto_ns_max = 10'000'000;
  i64 peer_silence_ns = core::defaults::kPeerSilenceNs;
  // With a credit policy: how many bytes a flow may send before its first grant; -1: as many as its window.
  i64 speculative_bytes = -1;
  // Rate of a host's ports as policies see it; 0: the sum of the ports' rates.
  i64 link_bytes_per_s = 0;
  core::PolicyChoice window, path, loss, credit;
  // Transfer t is sent under policy_sets[policy_set_of[t] - 1], or under the plan's own policies if that is 0. All
  // transfers of a connection have the same number. policy_set_of empty: all transfers use the plan's own policies.
  std::vector<PolicySetPlan> policy_sets;
  std::vector<u16> policy_set_of;

  // What is sampled over time.
  i64 sample_ns = 0;                // sampling interval; 0: none
  std::vector<u32> sample_ports;    // ports whose queues are sampled
  std::vector<u32> sample_streams;  // transfers whose connections are sampled

  // What hosts record, as FabricTrace describes. Recording does not affect the run.
  i64 trace_ns = 0;  // interval at which hosts record the states of their paths; 0: they record nothing
  // Size limit of a recording of all decisions of policies (native/core/recording.h), in a run of one thread; 0: none.
  u64 recording_bytes_max = 0;
};

// Returns the condition that an invalid plan does not meet; empty if the plan is valid.
std::string complaint(const FabricPlan& plan);
// Whether a window policy of the run reads telemetry, so that the switches stamp segments.
bool reads_hops(const FabricPlan& plan) noexcept;
// Estimates the memory that a run takes, before anything is allocated.
i64 estimated_bytes(const FabricPlan& plan);

}  // namespace weft::sim
