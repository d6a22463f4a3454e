// Runs the core benchmark over the mem datapath. The first tenth of the segments is warm-up and not counted. No payload
// is copied.
#include "bench/native/loops/core_bench.h"

#include <memory>

#include "bench/native/loops/core_bench_loop.h"
#include "bench/native/loops/mem_link.h"
#include "native/datapath/device.h"

namespace weft::bench {
namespace {

constexpr std::size_t kRingCells = 4096;

struct MemWire {
  void receive(int end, CoreBenchEnd* sink) { (end == 0 ? to_a : to_b).rx_burst(256, sink); }
  void send(int end, wire::TxBurst* burst) { (end == 0 ? to_b : to_a).tx_burst(*burst); }
  MemRing to_b{kRingCells}, to_a{kRingCells};
};
using Loop = CoreBenchLoop<MemWire>;

}  // namespace

bool core_bench_config(const engine::Knobs& knobs, engine::PolicySet* policies, core::StackConfig* out,
                       std::string* error) {
  if (!engine::choose_policies(knobs, policies, error)) return false;
  out->place_payload = false;
  out->window_bytes_max = knobs.window_bytes_max;
  out->window = policies->window->choice();
  out->path = policies->path->choice();
  out->loss = policies->loss->choice();
  if (policies->credit != nullptr) out->credit = policies->credit->choice();
  return true;
}

Status bench_core(const engine::Knobs& knobs, std::int64_t segments, std::int64_t segment_bytes, std::int64_t paths,
                  CoreBenchResult* out, std::string* error) {
  if (segments < 1 || segment_bytes < 576 || segment_bytes > datapath::kSegmentBytesMax || paths < 1 || paths > 256) {
    *error = "the arguments must be segments >= 1, segment_bytes 576..65472, paths 1..256";
    return Status::invalid_argument;
  }
  engine::PolicySet policies;
  core::StackConfig config;
  if (!core_bench_config(knobs, &policies, &config, error)) return Status::invalid_argument;
  core::PeerConfig peer;
  peer.path_count = static_cast<std::uint16_t>(paths);
  peer.segment_bytes = static_cast<std::uint16_t>(segment_bytes);
  // No NIC limits the bursts here, so they may be as large as the protocol allows.
  peer.train_bytes_max = static_cast<std::uint32_t>(wire::kMaxBurstSegments) * peer.segment_bytes;
  peer.port_buffer_bytes = 8 << 20;
  MemWire wire;
  const auto bench = std::make_unique<Loop>(config, peer, &wire);
  const std::uint64_t messages = static_cast<std::uint64_t>(segments) / Loop::kSegmentsPerMessage + 1;
  if (!bench->run(messages / 10 + 1)) return Status::timed_out;
  const core::FlowCounters before = bench->counters();
  const std::int64_t begin_ns = processor_ns();
  if (!bench->run(messages)) return Status::timed_out;
  const std::int64_t elapsed_ns = processor_ns() - begin_ns;
  const core::FlowCounters after = bench->counters();
  out->segments = static_cast<std::int64_t>(messages * Loop::kSegmentsPerMessage);
  out->ns_per_segment = static_cast<double>(elapsed_ns) / static_cast<double>(out->segments);
  out->acks = after.acks_received - before.acks_received;
  out->resent = after.segments_resent - before.segments_resent;
  return Status::ok;
}

}  // namespace weft::bench
