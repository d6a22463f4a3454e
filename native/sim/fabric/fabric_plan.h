// What a run of the fabric is made of: nodes, one-way links with their queues, routes, transfers and what depends on
// what, as plain values. Hosts are nodes 0 to hosts - 1, switches follow.
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

// One direction of a link: a queue at its source, and the wire behind it.
struct PortPlan {
  u32 from = 0, to = 0;  // nodes
  i64 bytes_per_s = 0;
  i64 delay_ns = 0;                              // of propagation, and of the switch that it leads to; at least 1
  i64 queue_bytes_max = 0;                       // of data, what is being sent included
  i64 mark_from_bytes = 0, mark_full_bytes = 0;  // ECN, by what the queue holds when a segment goes: never below the
                                                 // first, always from the second on; both 0: never
  double loss = 0;                               // of a packet, on the wire
  double bit_error_rate = 0;                     // a packet with a wrong bit is lost
  i64 burst_bytes = 0;  // of a token bucket: what an idle port saves up to send at once; 0: a wire, which saves nothing
};

// What changes on a port at a time. Negative: stays as it is.
struct PortChange {
  i64 at_ns = 0;
  u32 port = 0;
  i32 up = -1;  // 0: what is on the wire and what comes is lost; 1: carries again
  i64 bytes_per_s = -1;
  double loss = -1;
};

// One message of one connection. The transfers of a connection (same from, to and stream) go in their order here.
struct TransferPlan {
  u32 from = 0, to = 0;  // hosts
  u64 bytes = 0;
  i64 start_ns = 0;  // not before
  u32 stream = 0;    // another stream is another connection
  u32 job = 0;       // for reports alone
};

// `after` waits for `before`, and then for delay_ns more. `before` must end at the host where `after` begins: received
// there, or sent from there and acknowledged.
struct DependencyPlan {
  u32 before = 0, after = 0;
  i64 delay_ns = 0;
};

enum class Ecmp : u8 {
  hashed,  // by a hash of hosts, path and switch, as routers do it
  even,    // path p takes the p-th way, counted in digits: no two paths share one until all are taken
};

struct FabricPlan {
  u64 seed = 1;
  u32 threads = 1;
  bool check = false;  // P-1 to P-8 are checked as it runs
  i64 limit_ns = 1'000'000'000;

  // The network. route[switch * groups + group_of[host]] is a set of ports, or -1; a host's own link needs no route.
  u32 hosts = 0, switches = 0, groups = 0;
  std::vector<PortPlan> ports;  // sorted by `from`
  std::vector<u32> group_of;    // by host
  std::vector<i32> route;
  std::vector<u32> set_begin;  // of set s: set_ports[set_begin[s]] up to set_begin[s + 1]
  std::vector<u32> set_ports;
  std::vector<PortChange> changes;  // by time
  Ecmp ecmp = Ecmp::hashed;
  bool trim = false;     // a segment that finds the queue full loses its payload, and its header goes on
  bool priority = true;  // acknowledgments, other control and trimmed headers go before data
  i64 header_queue_bytes_max = 1 << 20;   // of what goes first
  i64 pause_bytes = 0, resume_bytes = 0;  // PFC: of one ingress in a switch's queues; 0: none

  // The work.
  std::vector<TransferPlan> transfers;
  std::vector<DependencyPlan> dependencies;

  // Hosts.
  i64 host_delay_ns = 0, host_jitter_ns = 0;  // from the wire to the transport; jitter: up to so much more, in order
  u16 paths = 64;
  u16 segment_bytes = 4160;     // weft's header of 64 included
  u16 wire_overhead_bytes = 0;  // on every packet, beside it
  u32 burst_bytes_max = 65'536;
  u32 ahead = 4;               // messages of a connection posted at a time
  bool receives_ready = true;  // the sender knows of each receive; false: receives are advertised over the network
  i64 rtt_ns = 0;              // known of every path at the start; 0: it is measured by probes
  i64 ack_bytes = 16'384;
  i64 ack_delay_ns = 10'000;
  i64 window_bytes_max = 16 << 20;
  i64 rto_ns_min = 100'000;
  i64 rto_ns_max = 10'000'000;
  i64 peer_silence_ns = 20'000'000'000;
  i64 speculative_bytes = -1;  // with a credit policy: what a flow may send before its first grant; -1: its window
  i64 link_bytes_per_s = 0;    // what hosts are told of their ports; 0: the sum of their rates
  core::PolicyChoice window, path, loss, credit;

  // What is written down.
  i64 sample_ns = 0;                // between samples; 0: none
  std::vector<u32> sample_ports;    // whose queues are sampled
  std::vector<u32> sample_streams;  // transfers whose connections' windows are sampled
};

// What is wrong with a plan, in words; empty when it can be run.
std::string complaint(const FabricPlan& plan);
// Memory a run of it takes, estimated before anything is made.
i64 estimated_bytes(const FabricPlan& plan);

}  // namespace weft::sim
