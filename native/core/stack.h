// The protocol instance of one engine: its peers and flows, scheduling and timers. It does no I/O: datagrams enter by
// on_datagram(), bursts leave by poll_transmit(), and the time is the argument `now_ns`. Not thread-safe.
#pragma once

#include <cstddef>

#include "native/core/changed_flows.h"
#include "native/core/deferred_flows.h"
#include "native/core/flow.h"
#include "native/core/post.h"
#include "native/core/slot_table.h"
#include "native/core/stack_policies.h"
#include "native/core/timer_heap.h"

namespace weft::core {

class Stack final : private StackPolicies::Owner {
 public:
  explicit Stack(const StackConfig& config);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Reserves a peer's index. Packets of the remote end are accepted only if they carry the index and the local token.
  Status reserve_peer(u32* index) noexcept;
  Status open_peer(i64 now_ns, u32 index, const PeerConfig& config) noexcept;
  Status reserve_flow(u32* index) noexcept;
  Status open_flow(i64 now_ns, u32 index, const FlowConfig& config) noexcept;
  // Lets a reserved flow be opened at its first use, instead of open_flow(). supply_flows() tells who has its
  // configuration then. The peer must be open.
  void supply_flows(FlowSource* source) noexcept { deferred_.use(source); }
  void defer_flow(i64 now_ns, u32 index, u32 peer) noexcept;
  // Opens a deferred flow. Null: there is none, its peer is dead, or memory ran out.
  Flow* open_deferred(i64 now_ns, u32 index) noexcept;
  void release_flow(u32 index) noexcept;  // call it after the event flow_closed, or if the flow was never opened
  void release_peer(u32 index) noexcept;  // call it after the event peer_released, or if the peer was never opened

  Status post_send(i64 now_ns, u32 flow, const SendPost& send) noexcept;
  Status post_receive(i64 now_ns, u32 flow, const ReceivePost& receive) noexcept;
  // Continues a flow after the copier has filled more of a send's bounce buffer or emptied more of a receive's.
  void on_staged(u32 flow) noexcept;
  // Closes a flow: drops its sends and receives without events for them and tells the peer. The event flow_closed
  // follows.
  void close_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // Fails a flow for the owner's reason, which is also sent to the peer.
  void give_up_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // Ends all flows to a peer that is known to be gone. Eager messages that have arrived completely can still be
  // received.
  void fail_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // Fails all flows to a peer that may still run, and sends close packets to it for a while.
  void give_up_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // Sends keepalives to the peer, even if no flow waits for it. Peer::heard_ns() tells when the peer answered.
  void probe_peer(u32 peer) noexcept;

  // Handles a received datagram. `arrived_ns`: the kernel's receive time stamp; 0: unknown.
  void on_datagram(i64 now_ns, const RxDatagram& datagram, i64 arrived_ns = 0) noexcept;
  // Notes that packets polled at `polled_ns` were passed to the kernel much later, because the thread was interrupted.
  void on_late_departure(i64 polled_ns) noexcept { shared_.host.on_late_departure(polled_ns, shared_.last_sent_ns); }
  // Notes that the thread of this stack did not run between the two times.
  void on_away(i64 from_ns, i64 to_ns) noexcept { shared_.host.on_away(from_ns, to_ns); }
  bool poll_transmit(i64 now_ns, TxBurst* out) noexcept;
  // poll_control() and poll_data() are the two halves of poll_transmit(), for a caller that may have room for control
  // packets only.
  bool poll_control(i64 now_ns, TxBurst* out) noexcept {
    shared_.trace.now_ns = now_ns;
    return transmit_control(now_ns, out);
  }
  bool poll_data(i64 now_ns, TxBurst* out) noexcept {
    shared_.trace.now_ns = now_ns;
    return (!resend_.empty() && transmit_data(now_ns, true, out)) ||
           (!ready_.empty() && transmit_data(now_ns, false, out));
  }
  void on_timer(i64 now_ns) noexcept;
  i64 poll_timeout() const noexcept { return timers_.next_ns(); }
  // For callers that run many stacks in turn, to be called in this order, with other work in between: prefetch()
  // fetches the stack, prefetch_lists() what its members point to, prefetch_flows() its flows if there are few,
  // prefetch_peers() their peers and queues, prefetch_records() what those point to, prefetch_flow_of() the flow of a
  // datagram if there are many, and prefetch_for() what the datagram will access.
  void prefetch() const noexcept {
    core::prefetch(&shared_, &shared_.own_counters);
    core::prefetch(&shared_.trace, &shared_.failures);
    core::prefetch(&peers_, this + 1);
  }
  void prefetch_lists() const noexcept {
    flows_.prefetch();
    timers_.prefetch();
  }
  void prefetch_flows() const noexcept {
    each_of_few([](const Flow& flow) { core::prefetch(&flow, &flow + 1); });
  }
  void prefetch_peers() const noexcept {
    each_of_few([](const Flow& flow) { flow.prefetch(); });
  }
  void prefetch_records() const noexcept {
    each_of_few([](const Flow& flow) { flow.prefetch_records(); });
  }
  void prefetch_flow_of(const u8* header) const noexcept {
    if (flows_.size() <= kFew) return;
    if (const Flow* flow = flows_.get(wire::claimed_flow(header))) core::prefetch(flow, flow + 1);
  }
  void prefetch_for(const u8* header, std::size_t bytes) const noexcept {
    const Flow* const flow = flows_.get(wire::claimed_flow(header));
    if (flow == nullptr) return;
    wire::each_claimed_path(header, bytes, [flow](u8 path) { flow->prefetch(path); });
  }
  bool has_control() const noexcept { return !control_.empty() || !peer_control_.empty(); }
  bool has_events() const noexcept { return !shared_.events.empty(); }
  // Whether a flow has data to send or resend. poll_transmit() may still find all flows blocked.
  bool wants_to_send() const noexcept { return !resend_.empty() || !ready_.empty(); }
  bool poll_event(Event* out) noexcept { return shared_.events.poll(out); }

  // The flows whose states have changed, if changed().want() was called before the first flow was reserved.
  ChangedFlows& changed() noexcept { return changed_; }
  StackPolicies& policies() noexcept { return policies_; }
  const EngineCells& counters() const noexcept { return *shared_.counters; }
  const StackConfig& config() const noexcept { return shared_.config; }
  Shared& shared() noexcept { return shared_; }
  Trace& trace() noexcept { return shared_.trace; }
  Flow* flow(u32 index) noexcept { return flows_.get(index); }
  Peer* peer(u32 index) noexcept { return peers_.get(index); }
  // All indices of flows are below this number; peer_count() is the same for peers.
  u32 flow_count() const noexcept { return flows_.size(); }
  u32 peer_count() const noexcept { return peers_.size(); }
  std::size_t storage_bytes() const noexcept;

 private:
  static constexpr u32 kFew = 3;               // so many flows are prefetched before it is known which are needed
  static constexpr i64 kIdleNs = 100'000'000;  // a flow that is idle for this long frees its per-path state

  template <class Use>
  void each_of_few(Use use) const noexcept {
    if (flows_.size() > kFew) return;
    for (u32 i = 0; i < flows_.size(); ++i) {
      if (const Flow* flow = flows_.get(i)) use(*flow);
    }
  }
  // The functions from here to release_deferred() are in stack_deferred.cc.
  Flow* open_deferred_for(i64 now_ns, const wire::Common& packet) noexcept;
  Flow* open_as(i64 now_ns, u32 index, const FlowConfig& config) noexcept;
  void end_deferred(u32 peer, Event::Kind kind, Status reason) noexcept;
  void report_ended(u32 index, Event::Kind kind, Status reason) noexcept;
  void release_deferred(u32 index) noexcept;
  // The functions from here to refresh() are in stack.cc.
  void make_flow(u32 index, const FlowConfig& config, Peer* owner);
  void measure_paths(i64 now_ns, u32 peer) noexcept;
  Status lacks(u32 index) const noexcept;
  Flow* opened(i64 now_ns, u32 index) noexcept {
    Flow* const target = flow(index);
    return target != nullptr ? target : open_deferred(now_ns, index);
  }
  void abandon(u32 index, Flow& flow, Status reason) noexcept;
  void report_failed_receives(u32 index, Flow& flow, Status reason) noexcept;
  void fail_flow(u32 index, Status reason) noexcept;
  void end_flow(u32 index, Flow& flow, Status reason) noexcept;
  void bury(u32 index, Peer& peer, Status reason) noexcept;
  void on_peer_unused(u32 index) noexcept;
  void refresh(i64 now_ns, u32 index) noexcept;
  void on_policy_replaced(i64 now_ns, u32 flow) noexcept override { refresh(now_ns, flow); }
  bool open_for_policy(i64 now_ns, u32 flow) noexcept override {
    return !deferred_.has(flow) || peers_[deferred_.peer_of(flow)].dead() || open_deferred(now_ns, flow) != nullptr;
  }
  bool refuse(telemetry::Cell* counter) noexcept {
    ++*counter;
    return false;
  }
  // The functions from here to wake_block_waiters() are in stack_receive.cc.
  bool on_flow_packet(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet,
                      const RxDatagram& datagram) noexcept;
  bool on_peer_packet(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram) noexcept;
  bool on_data(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet, const RxDatagram& datagram) noexcept;
  bool on_advert(i64 now_ns, u32 index, Flow& flow, const wire::Advert& advert) noexcept;
  void on_peer_close(i64 now_ns, u32 index, Flow& flow, const wire::Close& close) noexcept;
  void wake_path_waiters(Peer& peer) noexcept;
  void on_probed(i64 now_ns, Peer* peer, u8 path) noexcept;
  void wait_for_block(u32 index) noexcept;
  void wake_block_waiters() noexcept;
  // The functions from here to on_peer_timer() are in stack_transmit.cc.
  bool transmit_control(i64 now_ns, TxBurst* out) noexcept;
  bool transmit_flow_control(i64 now_ns, Flow& flow, TxBurst* out) noexcept;
  bool transmit_data(i64 now_ns, bool resend, TxBurst* out) noexcept;
  void queue_control(u32 index) noexcept;
  void queue_peer_control(u32 index) noexcept;
  void queue_ready(u32 index) noexcept;
  void schedule_flow(u32 index) noexcept;
  void schedule_peer(u32 index) noexcept;
  void on_flow_timer(i64 now_ns, u32 index) noexcept;
  void judge(i64 now_ns, u32 index) noexcept;
  void on_peer_timer(i64 now_ns, u32 index) noexcept;

  Shared shared_;
  SlotTable<Peer> peers_;
  SlotTable<Flow> flows_;
  u32 open_flows_ = 0;  // number of flows that are open, and not deferred
  DeferredFlows deferred_;
  ChangedFlows changed_;
  FlowQueue control_, peer_control_, resend_, ready_;
  FlowQueue block_waiters_;  // flows with a message that was refused for lack of an eager block
  TimerHeap timers_;
  StackPolicies policies_;
};

}  // namespace weft::core
