// Results of a fabric run: by transfer, connection and port, and over time.
#pragma once

#include <string>
#include <vector>

#include "native/sim/fabric/fabric_plan.h"
#include "native/telemetry/counters.h"

namespace weft::sim {

struct TransferReport {
  i64 ready_ns = -1;     // when all its dependencies were met
  i64 received_ns = -1;  // when the last byte was in place
  i64 sent_ns = -1;      // when the sender knew that
};

// A connection, that is the transfers with the same from, to and stream: the counters of its two flows together.
struct StreamReport {
  u32 from = 0, to = 0;
  telemetry::FlowCounters counters;
};

struct PortReport {
  u32 from = 0, to = 0;
  i64 packets = 0, bytes = 0;  // sent
  i64 data_packets = 0;
  i64 marked = 0, trimmed = 0;
  i64 dropped = 0;  // the queue was full and the packet was not trimmed
  i64 lost = 0;     // on the wire, or while the link was down
  i64 pauses = 0;   // how often PFC stopped this port
  i64 busy_ns = 0;
  i64 queue_bytes_p50 = 0, queue_bytes_p95 = 0, queue_bytes_p99 = 0, queue_bytes_max = 0;  // as seen by arriving data
};

struct FabricTotals {
  i64 ended_ns = 0;
  i64 packet_hops = 0;   // sum over packets of links crossed
  i64 data_packets = 0;  // sent by hosts, resends included
  i64 segments = 0;      // data packets that were not resends
  i64 windows = 0;       // windows of lookahead
  i64 transfers_done = 0;
  i64 violations = 0;
  i64 policies_failed = 0;
  i64 storage_bytes = 0;  // of the stacks, at the end
  u64 fingerprint = 0;
  bool finished = false;  // every transfer is done
};

struct FabricSamples {
  std::vector<i64> at_ns;
  std::vector<i64> queue_bytes;   // a row per sample, a column per sampled port
  std::vector<i64> window_bytes;  // a column per sampled connection
  std::vector<i64> inflight_bytes;
  std::vector<i64> sent_bytes;                        // sent and acknowledged
  std::vector<i64> queue_bytes_max, queue_bytes_sum;  // over all ports of switches
};

}  // namespace weft::sim
