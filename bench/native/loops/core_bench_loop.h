// Two stacks that one thread runs over any link. Each message has 64 segments, and eight messages are posted ahead. The
// clock is the real one, so timers run in real time. The cost of a network is not included.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "native/datapath/datapath.h"
#include "native/engine/clock.h"
#include "native/engine/policies/policy_choice.h"

namespace weft::bench {

// Fills `out` with the policies that the knobs name. `policies` must outlive the stacks.
bool core_bench_config(const engine::Knobs& knobs, engine::PolicySet* policies, core::StackConfig* out,
                       std::string* error);

// CPU time of this thread; other threads on the same core do not count.
inline std::int64_t processor_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct CoreBenchEnd final : datapath::RxSink {
  explicit CoreBenchEnd(const core::StackConfig& config) : stack(config) {}
  void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override {
    static_cast<void>(port);
    stack.on_datagram(now, datagram);
  }
  core::Stack stack;
  std::uint32_t peer = 0, flow = 0;
  std::int64_t now = engine::now_ns();
  std::uint64_t done = 0;
};

// A Wire has receive(end, sink), which delivers datagrams to an end, and send(end, burst), which takes an end's bursts.
template <class Wire>
class CoreBenchLoop {
 public:
  static constexpr std::uint64_t kSegmentsPerMessage = 64;

  // `peer`: the peer configuration of both ends.
  CoreBenchLoop(const core::StackConfig& config, core::PeerConfig peer, Wire* wire)
      : wire_(wire), a_(config), b_(config), tickets_(kAhead) {
    message_bytes_ = kSegmentsPerMessage * wire::segment_payload_bytes(peer.segment_bytes);
    payload_.resize(message_bytes_);
    static_cast<void>(a_.stack.reserve_peer(&a_.peer));
    static_cast<void>(b_.stack.reserve_peer(&b_.peer));
    static_cast<void>(a_.stack.reserve_flow(&a_.flow));
    static_cast<void>(b_.stack.reserve_flow(&b_.flow));
    open(a_, b_, peer);
    open(b_, a_, peer);
  }

  // Transfers `messages` messages. Returns false if that takes more than a minute.
  bool run(std::uint64_t messages) {
    const std::uint64_t until = a_.done + messages;
    const std::int64_t deadline_ns = engine::now_ns() + kPatienceNs;
    while (a_.done < until) {
      post(until);
      step(0, a_);
      step(1, b_);
      if (a_.now > deadline_ns) return false;
    }
    return true;
  }
  core::FlowCounters counters() { return a_.stack.flow(a_.flow)->counters(); }

 private:
  static constexpr std::uint64_t kAhead = 8;
  static constexpr std::int64_t kPatienceNs = 60'000'000'000;

  static void open(CoreBenchEnd& end, const CoreBenchEnd& other, core::PeerConfig peer) {
    peer.remote_peer = other.peer;
    peer.remote_token = peer.local_token = 1;
    static_cast<void>(end.stack.open_peer(0, end.peer, peer));
    core::FlowConfig flow;
    flow.peer = end.peer;
    flow.remote_flow = other.flow;
    flow.remote_token = flow.local_token = 2;
    static_cast<void>(end.stack.open_flow(engine::now_ns(), end.flow, flow));
  }

  void post(std::uint64_t until) {
    for (; received_ < until && received_ - b_.done < kAhead; ++received_) {
      core::ReceiveTicket& ticket = tickets_[received_ % kAhead];
      ticket.agreed_bytes.store(-1);
      ticket.stripes_placed.store(0);
      ticket.message.store(received_);
      static_cast<void>(
          b_.stack.post_receive(b_.now, b_.flow, {received_, payload_.data(), message_bytes_, 0, &ticket, nullptr}));
    }
    for (; sent_ < until && sent_ - a_.done < kAhead; ++sent_) {
      static_cast<void>(
          a_.stack.post_send(a_.now, a_.flow, {sent_, payload_.data(), message_bytes_, 0, nullptr, nullptr}));
    }
  }

  void step(int index, CoreBenchEnd& end) {
    end.now = engine::now_ns();
    wire_->receive(index, &end);
    if (end.stack.poll_timeout() <= end.now) end.stack.on_timer(end.now);
    for (int i = 0; i < 16 && end.stack.poll_transmit(end.now, &burst_); ++i) wire_->send(index, &burst_);
    core::Event event;
    while (end.stack.poll_event(&event)) {
      const bool counts = event.kind == core::Event::Kind::send_done || event.kind == core::Event::Kind::stripe_placed;
      end.done += counts ? 1 : 0;
    }
  }

  Wire* wire_;
  CoreBenchEnd a_, b_;
  std::vector<std::uint8_t> payload_;
  std::vector<core::ReceiveTicket> tickets_;
  std::uint64_t message_bytes_ = 0, sent_ = 0, received_ = 0;
  wire::TxBurst burst_;
};

}  // namespace weft::bench
