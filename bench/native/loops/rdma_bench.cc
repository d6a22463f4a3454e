// One datapath whose two links are connected to each other, run by one thread. A step sends 32 segments and receives
// them, like an iteration of a busy engine. The first tenth is warm-up and not counted.
#include "bench/native/loops/rdma_bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/native/loops/core_bench_loop.h"
#include "native/datapath/device.h"
#include "native/datapath/verbs/verbs_datapath.h"
#include "tests/native/verbs/stub_provider.h"

namespace weft::bench {
namespace {

using datapath::VerbsDatapath;
using datapath::VerbsMode;
using datapath::VerbsOptions;

constexpr std::uint32_t kStepSegments = 32;
constexpr std::size_t kBufferBytes = 16 << 20;      // payload at each end; larger than the private caches of a core
constexpr std::uint32_t kBenchTrainBytes = 65'472;  // the largest train that an engine sends
constexpr std::uint32_t kUdSegmentBytes = 4096;     // a UD message is one packet

struct Spent {
  std::int64_t send_ns = 0, receive_ns = 0;  // wall-clock time of sending and of receiving
};

bool mode_of(const std::string& name, VerbsMode* out) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    if (name == datapath::mode_name(mode)) *out = mode;
    if (name == datapath::mode_name(mode)) return true;
  }
  return false;
}

std::vector<datapath::Place> places() {
  std::vector<datapath::Place> found(1);
  found[0].port = "null0:1@1";
  return found;
}

std::uint32_t payload_bytes_of(const RdmaBenchPlan& plan) {
  return wire::segment_payload_bytes(static_cast<std::size_t>(plan.segment_bytes));
}

class DatapathLoop final : public datapath::RxSink {
 public:
  DatapathLoop(const RdmaBenchPlan& plan, const VerbsOptions& options)
      : plan_(plan),
        datapath_(options, datapath::stub_provider()),
        bursts_(static_cast<std::size_t>(kStepSegments / plan.burst_segments)) {
    if (plan.payload != RdmaBenchPayload::none) from_.resize(kBufferBytes);
    if (plan.payload == RdmaBenchPayload::copied) into_.resize(kBufferBytes);
  }

  bool open(std::string* error) {
    const std::vector<datapath::Place> ours = places();
    const std::vector<datapath::SocketAddress> addresses(1);
    const auto paths = static_cast<std::uint16_t>(plan_.paths);
    std::string params[2];
    std::uint16_t agreed = 0;
    if (!datapath_.open(error)) return false;
    for (std::uint32_t peer : {0u, 1u}) {
      if (!datapath_.open_link({peer, 0, paths, &ours}, &params[peer], error)) return false;
    }
    for (std::uint32_t peer : {0u, 1u}) {
      if (!datapath_.connect_link(peer, {&addresses, &params[1 - peer]}, &agreed, error)) return false;
    }
    for (wire::TxBurst& burst : bursts_) fill(&burst);
    if (is_direct() && !datapath_.add_memory({1, from_.data(), from_.size(), -1, 0}, error)) return false;
    return agreed == paths;
  }

  // Sends and receives segments. Returns false if a sent segment did not arrive.
  bool run(std::int64_t segments, Spent* spent) {
    std::int64_t before_ns = engine::now_ns();
    for (const std::int64_t until = received_ + segments; received_ < until;) {
      for (std::size_t i = 0; i < bursts_.size(); ++i) {
        aim(&bursts_[i]);
        batch_[i] = &bursts_[i];
      }
      datapath_.tx_burst(batch_.data(), bursts_.size());
      const std::int64_t sent_ns = engine::now_ns();
      // Polls several times: a segment sent by RDMA write has two completions, and one poll takes a batch of
      // completions.
      std::size_t seen = 0;
      for (int polls = 0; polls < 4 && seen < kStepSegments; ++polls) seen += datapath_.rx_burst(this);
      if (seen != kStepSegments) return false;
      const std::int64_t after_ns = engine::now_ns();
      spent->send_ns += sent_ns - before_ns;
      spent->receive_ns += after_ns - sent_ns;
      before_ns = after_ns;
    }
    return datapath_.counters().host_drops == 0 && datapath_.counters().foreign_completions == 0;
  }
  std::int64_t doorbells() const { return datapath_.counters().calls; }

  void on_datagram(std::uint32_t, const wire::RxDatagram& datagram) override {
    ++received_;
    if (into_.empty()) return;
    std::memcpy(into_.data() + into_at_, datagram.payload, datagram.payload_bytes);
    advance(&into_at_);
  }

 private:
  bool is_direct() const { return plan_.payload == RdmaBenchPayload::direct; }
  void fill(wire::TxBurst* burst) const {
    burst->count = static_cast<std::uint16_t>(plan_.burst_segments);
    burst->header_bytes = wire::kDataBytes;
    wire::Common common;
    common.body_bytes = static_cast<std::uint16_t>(payload_bytes_of(plan_));
    for (std::size_t i = 0; i < burst->count; ++i) {
      wire::encode_data(burst->headers + i * wire::kDataBytes, common, {});
    }
  }
  void aim(wire::TxBurst* burst) {
    burst->path = static_cast<std::uint8_t>(path_);
    path_ = path_ + 1 == plan_.paths ? 0 : path_ + 1;
    if (from_.empty()) return;
    for (std::size_t i = 0; i < burst->count; ++i) {
      burst->payload[i] = {from_.data() + from_at_, payload_bytes_of(plan_), 0, 0, 0};
      if (is_direct()) burst->payload[i].memory = burst->payload[i].remote_key = 1;
      advance(&from_at_);
    }
  }
  void advance(std::size_t* at) const {
    *at += payload_bytes_of(plan_);
    if (*at + payload_bytes_of(plan_) > kBufferBytes) *at = 0;
  }

  RdmaBenchPlan plan_;
  VerbsDatapath datapath_;
  std::vector<wire::TxBurst> bursts_;
  std::array<wire::TxBurst*, kStepSegments> batch_{};
  std::vector<std::uint8_t> from_, into_;
  std::size_t from_at_ = 0, into_at_ = 0;
  std::int64_t received_ = 0, path_ = 0;
};

// Posts, polls and reposts the same requests as the datapath would, but without the datapath.
class StubLoop {
 public:
  StubLoop(const RdmaBenchPlan& plan, const VerbsOptions& options) : plan_(plan), options_(options) {}
  ~StubLoop() {
    if (address_ != nullptr) static_cast<void>(datapath::stub_provider()->destroy_ah(address_));
  }

  bool open(std::string* error) {
    if (!port_.open(datapath::stub_provider(), places()[0], options_, error)) return false;
    pairs_.resize(static_cast<std::size_t>(plan_.paths));
    for (datapath::QueuePair& pair : pairs_) {
      datapath::RemoteQp itself;
      if (!port_.make_data_qp(&pair, error)) return false;
      itself.number = pair.number();
      if (!pair.join(port_.traits, itself, 0, error)) return false;
    }
    address_ = port_.make_address({});
    return address_ != nullptr;
  }

  bool run(std::int64_t segments, Spent* spent) {
    std::int64_t before_ns = engine::now_ns();
    for (std::int64_t done = 0; done < segments; done += kStepSegments) {
      for (std::int64_t sent = 0; sent < kStepSegments; sent += plan_.burst_segments) {
        if (!send(&pairs_[static_cast<std::size_t>(path_)])) return false;
        path_ = path_ + 1 == plan_.paths ? 0 : path_ + 1;
      }
      static_cast<void>(ibv_poll_cq(port_.send_cq, kStepSegments, done_));
      const std::int64_t sent_ns = engine::now_ns();
      if (!receive()) return false;
      const std::int64_t after_ns = engine::now_ns();
      spent->send_ns += sent_ns - before_ns;
      spent->receive_ns += after_ns - sent_ns;
      before_ns = after_ns;
    }
    return true;
  }
  std::int64_t doorbells() const { return doorbells_; }

 private:
  bool send(datapath::QueuePair* pair) {
    ibv_send_wr requests[kStepSegments];
    ibv_sge pieces[kStepSegments];
    const auto count = static_cast<std::size_t>(plan_.burst_segments);
    for (std::size_t i = 0; i < count; ++i) {
      pieces[i] = {reinterpret_cast<std::uintptr_t>(port_.send_slots.at(static_cast<std::uint32_t>(i))),
                   wire::kDataBytes, port_.send_slots.key()};
      requests[i] = {};
      requests[i].sg_list = &pieces[i];
      requests[i].num_sge = 1;
      requests[i].opcode = IBV_WR_SEND;
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      requests[i].wr.ud.ah = address_;
      requests[i].wr.ud.remote_qpn = pair->number();
      requests[i].wr.ud.remote_qkey = datapath::kQkey;
    }
    requests[count - 1].send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    ++doorbells_;
    return ibv_post_send(pair->get(), requests, &bad) == 0;
  }
  bool receive() {
    ibv_recv_wr requests[kStepSegments];
    ibv_sge pieces[kStepSegments];
    if (ibv_poll_cq(port_.data_cq, kStepSegments, done_) != kStepSegments) return false;
    for (std::size_t i = 0; i < kStepSegments; ++i) {
      pieces[i] = {reinterpret_cast<std::uintptr_t>(port_.data_slots.at(static_cast<std::uint32_t>(done_[i].wr_id))),
                   port_.data_slots.slot_bytes(), port_.data_slots.key()};
      requests[i] = {done_[i].wr_id, i + 1 < kStepSegments ? &requests[i + 1] : nullptr, &pieces[i], 1};
    }
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(port_.srq, requests, &bad) == 0;
  }

  RdmaBenchPlan plan_;
  VerbsOptions options_;
  datapath::VerbsPort port_;
  std::vector<datapath::QueuePair> pairs_;
  ibv_ah* address_ = nullptr;
  ibv_wc done_[kStepSegments];
  std::int64_t path_ = 0, doorbells_ = 0;
};

class VerbsWire {
 public:
  VerbsWire(const VerbsOptions& options, bool copies)
      : ends_{VerbsDatapath(options, datapath::stub_provider()), VerbsDatapath(options, datapath::stub_provider())},
        copies_(copies) {}

  bool open(std::uint16_t paths, std::string* error) {
    const std::vector<datapath::Place> ours = places();
    const std::vector<datapath::SocketAddress> addresses(1);
    std::string params[2];
    std::uint16_t agreed = 0;
    for (int end : {0, 1}) {
      if (!ends_[end].open(error) || !ends_[end].open_link({0, 0, paths, &ours}, &params[end], error)) return false;
    }
    for (int end : {0, 1}) {
      if (!ends_[end].connect_link(0, {&addresses, &params[1 - end]}, &agreed, error)) return false;
    }
    return agreed == paths;
  }
  void receive(int end, datapath::RxSink* sink) { ends_[end].rx_burst(sink); }
  void send(int end, wire::TxBurst* burst) {
    if (!copies_) std::fill(burst->payload, burst->payload + burst->count, wire::Payload{});
    ends_[end].tx_burst(&burst, 1);
  }
  std::int64_t buffer_bytes() const { return ends_[0].buffer_bytes(); }
  std::int64_t doorbells() const { return ends_[0].counters().calls + ends_[1].counters().calls; }

 private:
  VerbsDatapath ends_[2];
  bool copies_;
};

std::int64_t whole_steps(std::int64_t segments) {
  return (segments + kStepSegments - 1) / kStepSegments * kStepSegments;
}

template <class Loop>
Status time_loop(const RdmaBenchPlan& plan, const VerbsOptions& options, RdmaBenchResult* out, std::string* error) {
  const auto loop = std::make_unique<Loop>(plan, options);
  if (!loop->open(error)) return Status::invalid_argument;
  Spent warm, spent;
  if (!loop->run(plan.segments / 10 + 1, &warm)) return Status::internal_error;
  const std::int64_t doorbells = loop->doorbells(), begin_ns = processor_ns();
  if (!loop->run(plan.segments, &spent)) return Status::internal_error;
  const auto elapsed_ns = static_cast<double>(processor_ns() - begin_ns);
  out->segments = whole_steps(plan.segments);
  out->carried_segments = out->segments + whole_steps(plan.segments / 10 + 1);
  out->doorbells = loop->doorbells() - doorbells;
  const double sending = static_cast<double>(spent.send_ns) / static_cast<double>(spent.send_ns + spent.receive_ns);
  out->ns_per_segment = elapsed_ns / static_cast<double>(out->segments);
  out->send_ns_per_segment = out->ns_per_segment * sending;
  out->receive_ns_per_segment = out->ns_per_segment * (1 - sending);
  return Status::ok;
}

Status time_stack(const RdmaBenchPlan& plan, const VerbsOptions& options, const engine::Knobs& knobs,
                  RdmaBenchResult* out, std::string* error) {
  engine::PolicySet policies;
  core::StackConfig config;
  if (!core_bench_config(knobs, &policies, &config, error)) return Status::invalid_argument;
  config.place_payload = plan.payload != RdmaBenchPayload::none;
  VerbsWire wire(options, config.place_payload);
  core::PeerConfig peer;
  peer.path_count = static_cast<std::uint16_t>(plan.paths);
  peer.segment_bytes = static_cast<std::uint16_t>(plan.segment_bytes);
  peer.train_bytes_max = std::max(kBenchTrainBytes, std::uint32_t{peer.segment_bytes});
  peer.port_buffer_bytes = wire.buffer_bytes();
  if (!wire.open(peer.path_count, error)) return Status::invalid_argument;
  using Loop = CoreBenchLoop<VerbsWire>;
  const auto loop = std::make_unique<Loop>(config, peer, &wire);
  const std::uint64_t messages = static_cast<std::uint64_t>(plan.segments) / Loop::kSegmentsPerMessage + 1;
  if (!loop->run(messages / 10 + 1)) return Status::timed_out;
  const std::int64_t doorbells = wire.doorbells(), resent = loop->counters().segments_resent;
  const std::int64_t begin_ns = processor_ns();
  if (!loop->run(messages)) return Status::timed_out;
  const std::int64_t elapsed_ns = processor_ns() - begin_ns;
  out->segments = static_cast<std::int64_t>(messages * Loop::kSegmentsPerMessage);
  out->carried_segments = out->segments + static_cast<std::int64_t>((messages / 10 + 1) * Loop::kSegmentsPerMessage);
  out->ns_per_segment = static_cast<double>(elapsed_ns) / static_cast<double>(out->segments);
  out->doorbells = wire.doorbells() - doorbells;
  out->resent = loop->counters().segments_resent - resent;
  return Status::ok;
}

}  // namespace

Status bench_rdma(const RdmaBenchPlan& plan, const engine::Knobs& knobs, RdmaBenchResult* out, std::string* error) {
  VerbsOptions options;
  if (!mode_of(plan.mode, &options.mode) || plan.segments < 1 || plan.segment_bytes < 576 ||
      plan.segment_bytes > datapath::kSegmentBytesMax || plan.paths < 1 || plan.paths > 256 ||
      plan.burst_segments < 1 || kStepSegments % plan.burst_segments != 0) {
    *error =
        "the plan needs mode UC, RC or UD, segments >= 1, segment_bytes 576..65472, paths 1..256, "
        "burst_segments 1, 2, 4, 8, 16 or 32";
    return Status::invalid_argument;
  }
  if (options.mode == VerbsMode::ud && plan.segment_bytes > kUdSegmentBytes) {
    *error = "a message over UD is one packet, so segment_bytes must be 576..4096";
    return Status::invalid_argument;
  }
  options.direct = plan.payload == RdmaBenchPayload::direct;
  if (options.direct && (options.mode == VerbsMode::ud || plan.what != RdmaBenchWhat::datapath)) {
    *error = "payload `direct` can be measured only with `what` = datapath, over UC or RC";
    return Status::invalid_argument;
  }
  options.segment_bytes = static_cast<std::uint32_t>(plan.segment_bytes);
  datapath::StubTraits traits;
  traits.carried_bytes = wire::kDataBytes;
  traits.claimed_bytes = static_cast<std::uint32_t>(wire::kDataBytes) + payload_bytes_of(plan);
  datapath::stub_provider_reset(traits);
  switch (plan.what) {
    case RdmaBenchWhat::datapath:
      return time_loop<DatapathLoop>(plan, options, out, error);
    case RdmaBenchWhat::stub:
      return time_loop<StubLoop>(plan, options, out, error);
    case RdmaBenchWhat::stack:
      return time_stack(plan, options, knobs, out, error);
  }
  return Status::invalid_argument;
}

}  // namespace weft::bench
