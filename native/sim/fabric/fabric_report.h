// What a run of the fabric came to: by transfer, by connection, by port, and over time.
// Plain values; judges nothing.
#pragma once

#include <string>
#include <vector>

#include "native/sim/fabric/fabric_plan.h"

namespace weft::sim {

struct TransferReport {
  i64 ready_ns = -1;     // all it waits for has happened
  i64 received_ns = -1;  // the last byte is in place
  i64 sent_ns = -1;      // and the sender knows it
};

// Sums over a connection: the transfers with its from, to and stream.
struct StreamReport {
  u32 from = 0, to = 0;
  i64 bytes_sent = 0;
  i64 segments_sent = 0;
  i64 segments_resent = 0;
  i64 segments_lost = 0;     // verdicts
  i64 segments_trimmed = 0;  // reported back
  i64 spurious_resends = 0;
  i64 segments_duplicate = 0;  // at the receiver
  i64 acks_sent = 0;
};

struct PortReport {
  u32 from = 0, to = 0;
  i64 packets = 0, bytes = 0;  // that left
  i64 data_packets = 0;
  i64 marked = 0, trimmed = 0;
  i64 dropped = 0;  // the queue was full, and nothing could be trimmed
  i64 lost = 0;     // on the wire, or while the link was down
  i64 pauses = 0;   // PFC, that stopped this port
  i64 busy_ns = 0;
  i64 queue_bytes_p50 = 0, queue_bytes_p95 = 0, queue_bytes_p99 = 0, queue_bytes_max = 0;  // as arriving data saw it
};

struct FabricTotals {
  i64 ended_ns = 0;
  i64 packet_hops = 0;   // packets times links
  i64 data_packets = 0;  // that hosts sent, copies included
  i64 segments = 0;      // of these, sent for the first time
  i64 windows = 0;       // of lookahead
  i64 transfers_done = 0;
  i64 violations = 0;
  i64 policies_failed = 0;
  i64 storage_bytes = 0;  // of the stacks, at the end
  u64 fingerprint = 0;
  bool finished = false;  // every transfer is through
};

struct FabricSamples {
  std::vector<i64> at_ns;
  std::vector<i64> queue_bytes;   // a row a sample, a column a sampled port
  std::vector<i64> window_bytes;  // a column a sampled connection
  std::vector<i64> inflight_bytes;
  std::vector<i64> sent_bytes;                        // acknowledged
  std::vector<i64> queue_bytes_max, queue_bytes_sum;  // over all ports of switches
};

}  // namespace weft::sim
