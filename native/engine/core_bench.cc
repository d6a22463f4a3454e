// Messages of 64 segments, eight posted ahead each way of the handshake; the clock is real, so that timers are too.
// The first tenth of the segments warms slabs and rings up and is not counted.
#include "native/engine/core_bench.h"

#include <memory>
#include <vector>

#include "native/core/stack.h"
#include "native/datapath/mem/mem_link.h"
#include "native/engine/clock.h"
#include "native/engine/policy_choice.h"

namespace weft::engine {
namespace {

constexpr std::uint64_t kAhead = 8;
constexpr std::uint64_t kSegmentsPerMessage = 64;
constexpr std::size_t kRingCells = 4096;
constexpr std::int64_t kPatienceNs = 60'000'000'000;

struct End final : datapath::RxSink {
  explicit End(const core::StackConfig& config) : stack(config) {}
  void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override {
    static_cast<void>(port);
    stack.on_datagram(now, datagram);
  }
  core::Stack stack;
  std::uint32_t peer = 0, flow = 0;
  std::int64_t now = now_ns();
  std::uint64_t done = 0;
};

class CoreBench {
 public:
  CoreBench(const core::StackConfig& config, std::uint16_t segment_bytes, std::uint16_t paths)
      : a_(config), b_(config), to_b_(kRingCells, {}), to_a_(kRingCells, {}), payload_(1), tickets_(kAhead) {
    message_bytes_ = kSegmentsPerMessage * ((segment_bytes - wire::kDataBytes) & ~std::uint64_t{7});
    payload_.resize(message_bytes_);
    static_cast<void>(a_.stack.reserve_peer(&a_.peer));
    static_cast<void>(b_.stack.reserve_peer(&b_.peer));
    static_cast<void>(a_.stack.reserve_flow(&a_.flow));
    static_cast<void>(b_.stack.reserve_flow(&b_.flow));
    open(a_, b_, segment_bytes, paths);
    open(b_, a_, segment_bytes, paths);
  }

  // False: it got stuck.
  bool run(std::uint64_t messages) {
    const std::uint64_t until = a_.done + messages;
    const std::int64_t deadline_ns = now_ns() + kPatienceNs;
    while (a_.done < until) {
      post(until);
      step(a_, to_b_, to_a_);
      step(b_, to_a_, to_b_);
      if (a_.now > deadline_ns) return false;
    }
    return true;
  }
  core::FlowCounters counters() { return a_.stack.flow(a_.flow)->tx.counters(); }

 private:
  static void open(End& end, const End& other, std::uint16_t segment_bytes, std::uint16_t paths) {
    core::PeerConfig peer;
    peer.remote_peer = other.peer;
    peer.remote_token = peer.local_token = 1;
    peer.path_count = paths;
    peer.segment_bytes = segment_bytes;
    peer.train_bytes_max = wire::kMaxBurstSegments * segment_bytes;  // no device limits it
    peer.port_buffer_bytes = 8 << 20;
    static_cast<void>(end.stack.open_peer(end.peer, peer));
    core::FlowConfig flow;
    flow.peer = end.peer;
    flow.remote_flow = other.flow;
    flow.remote_token = flow.local_token = 2;
    static_cast<void>(end.stack.open_flow(now_ns(), end.flow, flow));
  }

  void post(std::uint64_t until) {
    for (; received_ < until && received_ - b_.done < kAhead; ++received_) {
      core::ReceiveTicket& ticket = tickets_[received_ % kAhead];
      ticket.agreed_bytes.store(-1);
      ticket.stripes_placed.store(0);
      ticket.message.store(received_);
      static_cast<void>(b_.stack.post_receive(b_.now, b_.flow, received_, payload_.data(), message_bytes_, 0, &ticket));
    }
    for (; sent_ < until && sent_ - a_.done < kAhead; ++sent_) {
      static_cast<void>(a_.stack.post_send(a_.now, a_.flow, sent_, payload_.data(), message_bytes_, 0, nullptr));
    }
  }

  void step(End& end, datapath::MemRing& out, datapath::MemRing& in) {
    end.now = now_ns();
    in.rx_burst(256, &end);
    if (end.stack.poll_timeout() <= end.now) end.stack.on_timer(end.now);
    for (int i = 0; i < 16 && end.stack.poll_transmit(end.now, &burst_); ++i) out.tx_burst(burst_);
    core::Event event;
    while (end.stack.poll_event(&event)) {
      const bool counts = event.kind == core::Event::Kind::send_done || event.kind == core::Event::Kind::stripe_placed;
      end.done += counts ? 1 : 0;
    }
  }

  End a_, b_;
  datapath::MemRing to_b_, to_a_;
  std::vector<std::uint8_t> payload_;
  std::vector<core::ReceiveTicket> tickets_;
  std::uint64_t message_bytes_ = 0, sent_ = 0, received_ = 0;
  wire::TxBurst burst_;
};

}  // namespace

Status bench_core(const Knobs& knobs, std::int64_t segments, std::int64_t segment_bytes, std::int64_t paths,
                  CoreBenchResult* out, std::string* error) {
  if (segments < 1 || segment_bytes < 576 || segment_bytes > 65'472 || paths < 1 || paths > 256) {
    *error = "segments >= 1, segment_bytes 576..65472, paths 1..256";
    return Status::invalid_argument;
  }
  PolicySet policies;
  if (!choose_policies(knobs, &policies, error)) return Status::invalid_argument;
  core::StackConfig config;
  config.place_payload = false;
  config.window_bytes_max = knobs.window_bytes_max;
  config.window = policies.window->choice();
  config.path = policies.path->choice();
  config.loss = policies.loss->choice();
  if (policies.credit != nullptr) config.credit = policies.credit->choice();
  const auto bench =
      std::make_unique<CoreBench>(config, static_cast<std::uint16_t>(segment_bytes), static_cast<std::uint16_t>(paths));
  const std::uint64_t messages = static_cast<std::uint64_t>(segments) / kSegmentsPerMessage + 1;
  if (!bench->run(messages / 10 + 1)) return Status::timed_out;
  const core::FlowCounters before = bench->counters();
  const std::int64_t begin_ns = now_ns();
  if (!bench->run(messages)) return Status::timed_out;
  const std::int64_t elapsed_ns = now_ns() - begin_ns;
  const core::FlowCounters after = bench->counters();
  out->segments = static_cast<std::int64_t>(messages * kSegmentsPerMessage);
  out->ns_per_segment = static_cast<double>(elapsed_ns) / static_cast<double>(out->segments);
  out->acks = after.acks_received - before.acks_received;
  out->resent = after.segments_resent - before.segments_resent;
  return Status::ok;
}

}  // namespace weft::engine
