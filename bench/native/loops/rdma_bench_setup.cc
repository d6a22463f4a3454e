// Opens links to many peers over one datapath, each connected to itself, and measures the time and heap bytes to set
// up, break, re-establish and close them. The provider is a fake, so the time excludes a real provider's work; the
// calls to the provider are counted instead.
#include <malloc.h>

#include <memory>
#include <vector>

#include "bench/native/loops/core_bench_loop.h"
#include "bench/native/loops/rdma_bench.h"
#include "native/datapath/device.h"
#include "native/datapath/verbs/verbs_datapath.h"
#include "tests/native/verbs/stub_provider.h"

namespace weft::bench {
namespace {

using datapath::VerbsDatapath;
using datapath::VerbsMode;

constexpr std::int64_t kPatienceNs = 60'000'000'000;

// Number of heap bytes that are allocated now; -1: this C library cannot tell.
std::int64_t heap_bytes() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
#else
  return -1;
#endif
}

struct NoSink final : datapath::RxSink {
  void on_datagram(std::uint32_t, const wire::RxDatagram&) override {}
};

bool open_links(const RdmaSetupPlan& plan, VerbsDatapath* datapath, RdmaSetupResult* out, std::string* error) {
  std::vector<datapath::Place> places(1);
  places[0].port = "null0:1@1";
  const std::vector<datapath::SocketAddress> addresses(1);
  std::string params;
  for (std::int64_t peer = 0; peer < plan.peers; ++peer) {
    const auto index = static_cast<std::uint32_t>(peer);
    const std::int64_t begin_ns = engine::now_ns();
    if (!datapath->open_link({index, 0, static_cast<std::uint16_t>(plan.paths), &places}, &params, error)) return false;
    const std::int64_t opened_ns = engine::now_ns();
    std::uint16_t agreed = 0;
    if (!datapath->connect_link(index, {&addresses, &params}, &agreed, error)) return false;
    out->open_ns += opened_ns - begin_ns;
    out->connect_ns += engine::now_ns() - opened_ns;
    if (agreed == plan.paths) continue;
    *error = "a link opened " + std::to_string(agreed) + " of " + std::to_string(plan.paths) + " paths: request fewer";
    return false;
  }
  return true;
}

void break_all(const RdmaSetupPlan& plan, VerbsDatapath* datapath, RdmaSetupResult* out) {
  const auto burst = std::make_unique<wire::TxBurst>();
  wire::TxBurst* const one = burst.get();
  one->count = 1;
  one->header_bytes = static_cast<std::uint16_t>(wire::encode_data(one->headers, {}, {}));
  datapath::stub_provider_refuse(true);
  const std::int64_t begin_ns = engine::now_ns();
  for (std::int64_t peer = 0; peer < plan.peers; ++peer) {
    for (std::int64_t path = 0; path < plan.paths; ++path) {
      one->peer = static_cast<std::uint32_t>(peer);
      one->path = static_cast<std::uint8_t>(path);
      datapath->tx_burst(&one, 1);
    }
  }
  out->break_ns = engine::now_ns() - begin_ns;
  datapath::stub_provider_refuse(false);
}

void reestablish_all(const RdmaSetupPlan& plan, VerbsDatapath* datapath, RdmaSetupResult* out) {
  NoSink sink;
  const std::int64_t begin_ns = engine::now_ns();
  while (datapath->counters().paths_reestablished < plan.peers * plan.paths &&
         engine::now_ns() - begin_ns < kPatienceNs) {
    datapath->rx_burst(&sink);
  }
  out->reestablish_ns = engine::now_ns() - begin_ns;
  out->reestablished = datapath->counters().paths_reestablished;
}

bool open_core(const RdmaSetupPlan& plan, const engine::Knobs& knobs, RdmaSetupResult* out, std::string* error) {
  engine::PolicySet policies;
  core::StackConfig config;
  if (!core_bench_config(knobs, &policies, &config, error)) return false;
  const std::int64_t before_bytes = heap_bytes();
  core::Stack stack(config);
  core::PeerConfig peer;
  peer.path_count = static_cast<std::uint16_t>(plan.paths);
  peer.segment_bytes = static_cast<std::uint16_t>(plan.segment_bytes);
  peer.train_bytes_max = peer.segment_bytes;
  for (std::int64_t i = 0; i < plan.peers; ++i) {
    std::uint32_t index = 0;
    if (stack.reserve_peer(&index) != Status::ok || stack.open_peer(0, index, peer) != Status::ok) return false;
  }
  out->core_bytes = before_bytes < 0 ? -1 : heap_bytes() - before_bytes;
  return true;
}

}  // namespace

Status bench_rdma_setup(const RdmaSetupPlan& plan, const engine::Knobs& knobs, RdmaSetupResult* out,
                        std::string* error) {
  datapath::VerbsOptions options;
  bool known = false;
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    if (plan.mode != datapath::mode_name(mode)) continue;
    options.mode = mode;
    known = true;
  }
  if (!known || plan.peers < 1 || plan.peers > 1'500 || plan.paths < 1 || plan.paths > 256 ||
      plan.segment_bytes < 576 || plan.segment_bytes > datapath::kSegmentBytesMax) {
    *error = "the plan needs mode UC, RC or UD, peers 1..1500, paths 1..256, segment_bytes 576..65472";
    return Status::invalid_argument;
  }
  options.segment_bytes = static_cast<std::uint32_t>(plan.segment_bytes);
  datapath::stub_provider_reset({});
  const std::int64_t before_bytes = heap_bytes();
  VerbsDatapath datapath(options, datapath::stub_provider());
  if (!datapath.open(error) || !open_links(plan, &datapath, out, error)) return Status::invalid_argument;
  out->datapath_bytes = before_bytes < 0 ? -1 : heap_bytes() - before_bytes;
  const datapath::StubAsked asked = datapath::stub_provider_asked();
  out->queue_pairs = asked.queue_pairs;
  out->send_requests = asked.send_requests;
  out->receive_requests = asked.receive_requests;
  out->completions = asked.completions;
  out->addresses = asked.addresses;
  out->registered_bytes = asked.registered_bytes;
  out->provider_calls = asked.calls;
  break_all(plan, &datapath, out);
  if (options.mode != VerbsMode::rc) reestablish_all(plan, &datapath, out);
  const std::int64_t closing_ns = engine::now_ns();
  for (std::int64_t peer = 0; peer < plan.peers; ++peer) datapath.close_link(static_cast<std::uint32_t>(peer));
  out->close_ns = engine::now_ns() - closing_ns;
  return open_core(plan, knobs, out, error) ? Status::ok : Status::out_of_memory;
}

}  // namespace weft::bench
