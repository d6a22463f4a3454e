// Benchmarks of the verbs datapath over a fake libibverbs (stub_provider): the cost of a segment, and of hundreds of
// thousands of paths. No NIC is involved.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::bench {

enum class RdmaBenchWhat : std::uint8_t {
  datapath,  // VerbsDatapath alone: tx_burst, reap, rx_burst, repost
  stub,      // the cost of the fake itself
  stack,     // with two protocol cores
};
enum class RdmaBenchPayload : std::uint8_t {
  none,
  copied,  // by both ends
  direct,  // sent in place and written to its destination by the NIC, which the fake does not do
};

struct RdmaBenchPlan {
  RdmaBenchWhat what = RdmaBenchWhat::datapath;
  RdmaBenchPayload payload = RdmaBenchPayload::none;
  std::string mode = "UC";
  std::int64_t segments = 0, segment_bytes = 0, burst_segments = 1, paths = 1;
};
struct RdmaBenchResult {
  double ns_per_segment = 0;          // both ends together
  double send_ns_per_segment = 0;     // tx_burst including completions; 0 for the stack
  double receive_ns_per_segment = 0;  // rx_burst including reposted slots
  std::int64_t segments = 0, doorbells = 0, resent = 0;
  std::int64_t carried_segments = 0;  // including warm-up
};
// The stack's policies come from the knobs.
Status bench_rdma(const RdmaBenchPlan& plan, const engine::Knobs& knobs, RdmaBenchResult* out, std::string* error);

struct RdmaSetupPlan {
  std::string mode = "UC";
  std::int64_t peers = 0, paths = 0, segment_bytes = 0;
};
struct RdmaSetupResult {
  std::int64_t open_ns = 0, connect_ns = 0, close_ns = 0;
  std::int64_t break_ns = 0;  // a burst on every path fails on a broken queue pair
  std::int64_t mend_ns = 0;   // until all paths work again; 0 for RC, which needs its peer
  std::int64_t mended = 0;
  std::int64_t datapath_bytes = 0;  // heap bytes as counted by the allocator; -1 if it does not count
  std::int64_t core_bytes = 0;      // the protocol core's peers with the same number of paths
  // Calls to the provider when all links were up.
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t provider_calls = 0;  // to set up
};
Status bench_rdma_setup(const RdmaSetupPlan& plan, const engine::Knobs& knobs, RdmaSetupResult* out,
                        std::string* error);

}  // namespace weft::bench
