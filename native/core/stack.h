// The protocol of one engine: its peers and flows by index, scheduling and timers. Sans-IO: datagrams enter by
// on_datagram, bursts leave by poll_transmit, and time is only the `now_ns` argument. Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "native/core/flow.h"
#include "native/core/slot_table.h"
#include "native/core/timer_heap.h"

namespace weft::core {

class Stack {
 public:
  explicit Stack(const StackConfig& config);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Indices are chosen here. The remote end must put (index, local token) into its packets.
  Status reserve_peer(u32* index) noexcept;
  Status open_peer(i64 now_ns, u32 index, const PeerConfig& config) noexcept;
  Status reserve_flow(u32* index) noexcept;
  Status open_flow(i64 now_ns, u32 index, const FlowConfig& config) noexcept;
  void release_flow(u32 index) noexcept;  // after the event flow_closed, or if it was never opened
  void release_peer(u32 index) noexcept;  // after the event peer_released, or if it was never opened

  // `memory`: the datapath's registration that contains `data`; 0: none. `stage`: bounce buffer that supplies the
  // flow's stripe if `data` is null; it must outlive the send, or the flow's reference to it.
  Status post_send(i64 now_ns, u32 flow, u64 message, const u8* data, u64 message_bytes, u32 memory, void* cookie,
                   Stage* stage = nullptr) noexcept;
  // `message`: increases from call to call. A skipped number means that no part of that message can arrive over this
  // flow (takes_part() of the receive's capacity is false).
  // `key`: of the memory window onto the buffer, or 0. The caller closes the window when an event says so, or once the
  // flow no longer refers to the buffer.
  // `stage`: bounce buffer that takes the flow's stripe if `data` is null; such a receive has no window.
  Status post_receive(i64 now_ns, u32 flow, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
                      Stage* stage = nullptr) noexcept;
  // The copier has filled more of a send's bounce buffer or emptied more of a receive's.
  void on_staged(u32 flow) noexcept;
  // Drops all outstanding sends and receives without events for them and tells the peer; the event flow_closed follows.
  void close_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // Fails a flow for a reason that its owner found, and tells the peer that reason.
  void give_up_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // The peer is known to be gone: ends its flows now. Complete messages that they hold can still be received.
  void fail_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // Stops waiting for a peer that may still run: fails its flows and sends close packets to it for a while.
  void give_up_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // Probes the peer for a sign of life, even if no flow waits for it; Peer::heard_ns() tells when one arrived.
  void probe_peer(u32 peer) noexcept;

  // `arrived_ns`: the kernel's receive time stamp; 0: unknown.
  void on_datagram(i64 now_ns, const RxDatagram& datagram, i64 arrived_ns = 0) noexcept;
  // The thread was interrupted: packets polled at `polled_ns` were handed to the kernel much later.
  void on_late_departure(i64 polled_ns) noexcept { shared_.host.on_late_departure(polled_ns, shared_.last_sent_ns); }
  // The thread that calls this stack did not run between the two times.
  void on_away(i64 from_ns, i64 to_ns) noexcept { shared_.host.on_away(from_ns, to_ns); }
  bool poll_transmit(i64 now_ns, TxBurst* out) noexcept;
  // The two halves of poll_transmit, for ports that send control packets first and may have no room for data.
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
  // Prefetches the stack and its first flows; for callers that step many stacks in turn.
  void prefetch() const noexcept {
    for (std::size_t at = 0; at < sizeof(Stack); at += 64) __builtin_prefetch(reinterpret_cast<const char*>(this) + at);
    for (u32 i = 0; i < flows_.size() && i < 2; ++i) {
      const char* flow = reinterpret_cast<const char*>(flows_.get(i));
      for (std::size_t at = 0; at < sizeof(Flow); at += 64) __builtin_prefetch(flow + at);
    }
  }
  // Prefetches what a datagram for this flow and path will touch; the flow itself should be in the cache already.
  void prefetch(u32 index, u8 path) const noexcept {
    if (const Flow* flow = flows_.get(index)) flow->prefetch(path);
  }
  bool has_control() const noexcept { return !control_.empty() || !peer_control_.empty(); }
  bool has_events() const noexcept { return !shared_.events.empty(); }
  // Whether poll_transmit may find a resend or new data. It may still find all of it blocked.
  bool wants_to_send() const noexcept { return !resend_.empty() || !ready_.empty(); }
  bool poll_event(Event* out) noexcept { return shared_.events.poll(out); }

  // Changes policies of live flows, on the engine's thread (stack_policies.cc); segments in flight are not affected.
  // With `params_only` the same policy continues with other parameters; a policy that was replaced by `fixed` after a
  // failure is not restored. False: out of memory.
  bool set_policy(i64 now_ns, policy::Family family, u32 flow, PolicyChoice choice, bool params_only) noexcept;
  // Applies to all present and future flows and peers without a choice of their own.
  bool set_default(i64 now_ns, policy::Family family, PolicyChoice choice, bool params_only) noexcept;
  // The policy that a flow uses now (path family: its peer's). Empty: no credit policy, or no such flow.
  PolicyChoice in_force(policy::Family family, u32 flow) noexcept;
  // Lists every policy that a flow, a peer or a default refers to; any other may be unloaded.
  void policies_in_use(std::vector<PolicyChoice>* out);

  const EngineCells& counters() const noexcept { return *shared_.counters; }
  const StackConfig& config() const noexcept { return shared_.config; }
  Shared& shared() noexcept { return shared_; }
  Trace& trace() noexcept { return shared_.trace; }
  Flow* flow(u32 index) noexcept { return flows_.get(index); }
  Peer* peer(u32 index) noexcept { return peers_.get(index); }
  // Upper bounds of the indices.
  u32 flow_count() const noexcept { return flows_.size(); }
  u32 peer_count() const noexcept { return peers_.size(); }
  std::size_t storage_bytes() const noexcept;

 private:
  static constexpr i64 kIdleNs = 100'000'000;  // a flow releases its per-path storage after being idle for this long

  // stack.cc
  void abandon(u32 index, Flow& flow, Status reason) noexcept;
  void report_failed_receives(u32 index, Flow& flow, Status reason) noexcept;
  void fail_flow(u32 index, Status reason) noexcept;
  void end_flow(u32 index, Flow& flow, Status reason) noexcept;
  void bury(u32 index, Peer& peer, Status reason) noexcept;
  void on_peer_unused(u32 index) noexcept;
  void refresh(i64 now_ns, u32 index) noexcept;
  bool refuse(telemetry::Cell* counter) noexcept {
    ++*counter;
    return false;
  }
  // stack_policies.cc
  CreditPort* credit_port(PolicyChoice choice);
  static bool has_own(policy::Family family, const Flow& flow) noexcept;
  bool change_flow(i64 now_ns, policy::Family family, u32 index, PolicyChoice choice, bool params_only) noexcept;
  bool change_path(i64 now_ns, u32 index, PolicyChoice choice, bool params_only) noexcept;
  void report_replaced(i64 now_ns, policy::Family family, u32 flow, u32 peer) noexcept;
  // stack_receive.cc
  bool on_flow_packet(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet,
                      const RxDatagram& datagram) noexcept;
  bool on_peer_packet(i64 now_ns, const wire::Packet& packet) noexcept;
  bool on_data(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet, const RxDatagram& datagram) noexcept;
  bool on_advert(i64 now_ns, u32 index, Flow& flow, const wire::Advert& advert) noexcept;
  void on_peer_close(i64 now_ns, u32 index, Flow& flow, const wire::Close& close) noexcept;
  void wake_path_waiters(Peer& peer) noexcept;
  void on_probed(i64 now_ns, Peer* peer, u8 path) noexcept;
  void wait_for_block(u32 index) noexcept;
  void wake_block_waiters() noexcept;
  // stack_transmit.cc
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
  std::vector<std::unique_ptr<CreditPort>> credit_ports_;
  SlotTable<Peer> peers_;
  SlotTable<Flow> flows_;
  FlowQueue control_, peer_control_, resend_, ready_;
  FlowQueue block_waiters_;  // flows that were refused an eager block and still want one
  TimerHeap timers_;
};

}  // namespace weft::core
