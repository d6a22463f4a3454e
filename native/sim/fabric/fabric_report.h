// Results of a fabric run: per transfer, connection and port, and samples over time.
#pragma once

#include <string>
#include <vector>

#include "native/sim/fabric/fabric_plan.h"
#include "native/telemetry/counters.h"

namespace weft::sim {

struct TransferReport {
  i64 ready_ns = -1;     // when everything that the transfer waits for was done
  i64 posted_ns = -1;    // when the sender posted it: at most `ahead` messages of a connection are posted at a time
  i64 received_ns = -1;  // when the receiver had all bytes
  i64 sent_ns = -1;      // when the sender knew that the receiver has all bytes
};

// A connection, that is, all transfers with the same from, to and stream; with the merged counters of its two flows.
struct StreamReport {
  u32 from = 0, to = 0;
  telemetry::FlowCounters counters;
};

struct PortReport {
  u32 from = 0, to = 0;
  i64 packets = 0, bytes = 0;  // number and bytes of packets sent
  i64 data_packets = 0;
  i64 marked = 0, trimmed = 0;
  i64 dropped = 0;  // packets lost because the queue was full and they were not trimmed
  i64 lost = 0;     // packets lost on the wire, or because the link was down
  i64 pauses = 0;   // number of times that PFC stopped this port
  i64 busy_ns = 0;
  // Percentiles and maximum of the queue length that arriving data packets find.
  i64 queue_bytes_p50 = 0, queue_bytes_p95 = 0, queue_bytes_p99 = 0, queue_bytes_max = 0;
};

struct FabricTotals {
  i64 ended_ns = 0;
  i64 packet_hops = 0;   // links crossed by packets, summed over all packets
  i64 data_packets = 0;  // data packets sent by hosts, including retransmissions
  i64 segments = 0;      // data packets that are not retransmissions
  i64 windows = 0;       // number of time windows handled
  i64 transfers_done = 0;
  i64 violations = 0;
  i64 policies_failed = 0;
  i64 storage_bytes = 0;  // memory of the stacks' protocol state at the end
  u64 fingerprint = 0;
  bool finished = false;  // every transfer is done
};

struct FabricSamples {
  std::vector<i64> at_ns;
  std::vector<i64> queue_bytes;   // one row per sample, one column per sampled port
  std::vector<i64> port_bytes;    // bytes that the port has sent
  std::vector<i64> window_bytes;  // this and the next four: one column per sampled connection
  std::vector<i64> inflight_bytes;
  std::vector<i64> pacing_bytes_per_s;                // 0: sending is not paced
  std::vector<i64> sent_bytes;                        // acknowledged bytes
  std::vector<i64> received_bytes;                    // bytes that the receiver has got, each counted once
  std::vector<i64> queue_bytes_max, queue_bytes_sum;  // longest queue, and sum of all queues, of switch ports
};

}  // namespace weft::sim
