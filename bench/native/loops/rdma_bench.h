// Benchmarks of the verbs datapath over a fake libibverbs (stub_provider). They measure the cost of a segment, and of
// hundreds of thousands of paths. No NIC is involved.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/knobs.h"

namespace weft::bench {

enum class RdmaBenchWhat : std::uint8_t {
  datapath,  // only VerbsDatapath: tx_burst, reap, rx_burst, repost
  stub,      // only the fake libibverbs, to measure its own cost
  stack,     // VerbsDatapath with two protocol cores
};
enum class RdmaBenchPayload : std::uint8_t {
  none,
  copied,  // payload copied at both ends
  // Sent without a copy and written to its destination by the NIC; the fake libibverbs moves no bytes.
  direct,
};

struct RdmaBenchPlan {
  RdmaBenchWhat what = RdmaBenchWhat::datapath;
  RdmaBenchPayload payload = RdmaBenchPayload::none;
  std::string mode = "UC";
  std::int64_t segments = 0, segment_bytes = 0, burst_segments = 1, paths = 1;
};
struct RdmaBenchResult {
  double ns_per_segment = 0;          // CPU time of both ends together
  double send_ns_per_segment = 0;     // time in tx_burst(), including completions; 0 with protocol cores
  double receive_ns_per_segment = 0;  // time in rx_burst(), including reposting of receive requests
  std::int64_t segments = 0, doorbells = 0, resent = 0;
  std::int64_t carried_segments = 0;  // number of segments transferred, including warm-up
};
// Runs the plan. Policies of the protocol cores are those that the knobs name.
Status bench_rdma(const RdmaBenchPlan& plan, const engine::Knobs& knobs, RdmaBenchResult* out, std::string* error);

struct RdmaSetupPlan {
  std::string mode = "UC";
  std::int64_t peers = 0, paths = 0, segment_bytes = 0;
};
struct RdmaSetupResult {
  std::int64_t open_ns = 0, connect_ns = 0, close_ns = 0;
  std::int64_t break_ns = 0;  // time to send a burst on every path while all queue pairs are broken
  // Time until all paths work again; 0 for RC, where the peer would have to re-establish its queue pairs too.
  std::int64_t reestablish_ns = 0;
  std::int64_t reestablished = 0;
  std::int64_t datapath_bytes = 0;  // heap bytes of the datapath; -1: this C library cannot tell
  std::int64_t core_bytes = 0;      // heap bytes of the protocol core for the same number of peers and paths
  // Numbers of provider objects and requests when all links were up.
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t provider_calls = 0;  // calls to the provider to set up the links
};
Status bench_rdma_setup(const RdmaSetupPlan& plan, const engine::Knobs& knobs, RdmaSetupResult* out,
                        std::string* error);

}  // namespace weft::bench
