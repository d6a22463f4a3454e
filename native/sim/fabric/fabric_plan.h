// The description of a fabric run, as plain values: nodes, one-way links with their queues, routes, transfers and
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

// One direction of a link: a queue at its source and the wire after it.
struct PortPlan {
  u32 from = 0, to = 0;  // nodes
  i64 bytes_per_s = 0;
  i64 delay_ns = 0;                              // propagation plus the next switch's delay; at least 1
  i64 queue_bytes_max = 0;                       // for data, including what is being sent
  i64 mark_from_bytes = 0, mark_full_bytes = 0;  // ECN by the queue length when a segment leaves: never below the
                                                 // first, always at or above the second; both 0: never
  double loss = 0;                               // probability per packet, on the wire
  double bit_error_rate = 0;                     // a packet with a wrong bit is lost
  i64 burst_bytes = 0;  // token bucket size: an idle port saves up this much to send at once; 0: a plain wire
};

// A change of a port at a given time. Negative values leave a property unchanged.
struct PortChange {
  i64 at_ns = 0;
  u32 port = 0;
  i32 up = -1;  // 0: packets in the queue and new ones are lost; 1: works again
  i64 bytes_per_s = -1;
  double loss = -1;
};

// One message of one connection. The transfers of a connection (equal from, to and stream) are sent in the order in
// which they are listed.
struct TransferPlan {
  u32 from = 0, to = 0;  // host numbers
  u64 bytes = 0;
  i64 start_ns = 0;  // earliest start
  u32 stream = 0;    // different streams are different connections
  u32 job = 0;       // only used in reports
};

// `after` starts delay_ns after `before` has finished. `before` must end at the host where `after` starts: by being
// received there, or by being sent from there and acknowledged.
struct DependencyPlan {
  u32 before = 0, after = 0;
  i64 delay_ns = 0;
};

enum class Ecmp : u8 {
  hashed,  // by a hash of hosts, path and switch, like routers
  even,    // path p takes the p-th way, digit by digit, so that paths share ways only if there are more paths than ways
};

struct FabricPlan {
  u64 seed = 1;
  u32 threads = 1;
  bool check = false;  // check P-1 to P-8 during the run
  i64 limit_ns = 1'000'000'000;

  // The network. route[switch * groups + group_of[host]] is a set of ports, or -1; a host's own link needs no route.
  u32 hosts = 0, switches = 0, groups = 0;
  std::vector<PortPlan> ports;  // sorted by `from`
  std::vector<u32> group_of;    // by host
  std::vector<i32> route;
  std::vector<u32> set_begin;  // the ports of set s are set_ports[set_begin[s]] to set_ports[set_begin[s + 1] - 1]
  std::vector<u32> set_ports;
  std::vector<PortChange> changes;  // sorted by time
  Ecmp ecmp = Ecmp::hashed;
  bool trim = false;     // if a queue is full, a segment is trimmed: it loses its payload, and its header goes on
  bool priority = true;  // control packets and trimmed headers are sent before data
  i64 header_queue_bytes_max = 1 << 20;   // queue limit of these priority packets
  i64 pause_bytes = 0, resume_bytes = 0;  // PFC thresholds for the bytes of one ingress in a switch's queues; 0: none

  // The transfers.
  std::vector<TransferPlan> transfers;
  std::vector<DependencyPlan> dependencies;

  // The hosts.
  // between wire and transport; jitter: maximal random addition, which keeps the order
  i64 host_delay_ns = 0, host_jitter_ns = 0;
  u16 paths = 64;
  u16 segment_bytes = 4160;     // including weft's header of 64
  u16 wire_overhead_bytes = 0;  // added to every packet on the wire
  u32 burst_bytes_max = 65'536;
  u32 ahead = 4;               // messages of a connection that are posted and not complete
  bool receives_ready = true;  // the sender knows all receives; false: receives are advertised over the network
  i64 rtt_ns = 0;              // round trip of every path if known at the start; 0: measured by probes
  i64 ack_bytes = 16'384;
  i64 ack_delay_ns = 10'000;
  i64 window_bytes_max = core::defaults::kWindowBytesMax;
  i64 rto_ns_min = 100'000;  // round trips inside a data center are short
  i64 rto_ns_max = 10'000'000;
  i64 peer_silence_ns = core::defaults::kPeerSilenceNs;
  // with a credit policy: bytes a flow may send before its first grant; -1: its window
  i64 speculative_bytes = -1;
  i64 link_bytes_per_s = 0;  // what hosts are told about their ports; 0: the sum of the rates
  core::PolicyChoice window, path, loss, credit;

  // What is sampled.
  i64 sample_ns = 0;                // sampling interval; 0: none
  std::vector<u32> sample_ports;    // ports whose queues are sampled
  std::vector<u32> sample_streams;  // transfers whose connections are sampled
};

// What a valid plan needs and this one lacks, in words; empty if it is valid.
std::string complaint(const FabricPlan& plan);
// An estimate of the memory that a run takes, made before anything is allocated.
i64 estimated_bytes(const FabricPlan& plan);

}  // namespace weft::sim
