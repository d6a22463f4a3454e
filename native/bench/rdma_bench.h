// What the verbs datapath costs, over a fake of libibverbs (stub_provider): a segment's way out and in, and paths by
// the hundred thousand. Measurements, not a path that traffic takes; nothing here has met a NIC.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::bench {

enum class RdmaBenchWhat : std::uint8_t {
  datapath,  // VerbsDatapath alone: tx_burst, reap, rx_burst, repost
  stub,      // what the fake itself takes of it
  stack,     // two protocol cores as well
};
enum class RdmaBenchPayload : std::uint8_t {
  none,
  copied,  // by both ends
  direct,  // left where it lies, and written to where it belongs by the NIC, which the fake does not do
};

struct RdmaBenchPlan {
  RdmaBenchWhat what = RdmaBenchWhat::datapath;
  RdmaBenchPayload payload = RdmaBenchPayload::none;
  std::string mode = "UC";
  std::int64_t segments = 0, segment_bytes = 0, burst_segments = 1, paths = 1;
};
struct RdmaBenchResult {
  double ns_per_segment = 0;          // both ends together
  double send_ns_per_segment = 0;     // tx_burst and what it reaps; 0 for the stack
  double receive_ns_per_segment = 0;  // rx_burst, with the slots posted again
  std::int64_t segments = 0, doorbells = 0, resent = 0;
  std::int64_t carried_segments = 0;  // with those that warmed up
};
// Knobs name the stack's policies.
Status bench_rdma(const RdmaBenchPlan& plan, const engine::Knobs& knobs, RdmaBenchResult* out, std::string* error);

struct RdmaSetupPlan {
  std::string mode = "UC";
  std::int64_t peers = 0, paths = 0, segment_bytes = 0;
};
struct RdmaSetupResult {
  std::int64_t open_ns = 0, connect_ns = 0, close_ns = 0;
  std::int64_t break_ns = 0;  // every path finds its queue pair broken by a burst
  std::int64_t mend_ns = 0;   // until all work again; RC asks its peer, which is not there: 0
  std::int64_t mended = 0;
  std::int64_t datapath_bytes = 0;  // of the heap, by the allocator's count; -1 where it keeps none
  std::int64_t core_bytes = 0;      // the protocol core's peers with as many paths
  // What was asked of the provider when all links were up.
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t provider_calls = 0;  // to set up
};
Status bench_rdma_setup(const RdmaSetupPlan& plan, const engine::Knobs& knobs, RdmaSetupResult* out,
                        std::string* error);

}  // namespace weft::bench
