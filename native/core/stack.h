// The protocol half of an engine: peers and flows by index, whose turn it is, and when somebody must be woken.
// Sans-IO: datagrams in by on_datagram, bursts out by poll_transmit, time only as `now_ns`. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "native/core/flow.h"
#include "native/core/timer_heap.h"

namespace weft::core {

class Stack {
 public:
  explicit Stack(const StackConfig& config);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Indices are ours; what the remote end must put into its packets is (index, local token).
  Status reserve_peer(u32* index) noexcept;
  Status open_peer(u32 index, const PeerConfig& config) noexcept;
  Status reserve_flow(u32* index) noexcept;
  Status open_flow(i64 now_ns, u32 index, const FlowConfig& config) noexcept;
  void release_flow(u32 index) noexcept;  // after flow_closed, or never opened
  void release_peer(u32 index) noexcept;  // after peer_released, or never opened

  // `memory`: the registration that `data` lies in, for the datapath; 0: none. `stage`: through which the flow's stripe
  // comes, where there is no `data`; it must stay until the send is done or the flow lets go.
  Status post_send(i64 now_ns, u32 flow, u64 message, const u8* data, u64 message_bytes, u32 memory, void* cookie,
                   Stage* stage = nullptr) noexcept;
  // `message`: numbers grow; one that is left out cannot come over this flow (takes_part of its capacity says no).
  // `key`: of a window onto the buffer, or 0. Whoever opened it closes it when an event says so, or once the flow lets
  // go of its buffers.
  // `stage`: through which the flow's stripe goes, where there is no `data`; then there is no window either.
  Status post_receive(i64 now_ns, u32 flow, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
                      Stage* stage = nullptr) noexcept;
  // More of what the flow is to send has been copied into its stage, or of what it received has been copied out.
  void on_staged(u32 flow) noexcept;
  // Forgets everything outstanding at once (no event for it) and tells the peer; flow_closed follows.
  void close_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // Ends a flow for what its owner knows of it: it fails, and the peer is told why.
  void give_up_flow(i64 now_ns, u32 flow, Status reason) noexcept;
  // The peer is known to be gone: its flows end now. What they hold of complete messages may still be received.
  void fail_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // The peer may still run, but is waited for no longer: its flows fail, and close packets tell it so for a while.
  void give_up_peer(i64 now_ns, u32 peer, Status reason) noexcept;
  // Asks the peer for a sign of life, whether or not a flow waits for it; Peer::heard_ns() says when one came.
  void probe_peer(u32 peer) noexcept;

  // `arrived_ns`: when the kernel had it; 0 where that is not known.
  void on_datagram(i64 now_ns, const RxDatagram& datagram, i64 arrived_ns = 0) noexcept;
  // What was polled at `polled_ns` left much later, because the thread was interrupted.
  void on_late_departure(i64 polled_ns) noexcept { shared_.host.on_late_departure(polled_ns, shared_.last_sent_ns); }
  // The thread that calls this stack did not run in between.
  void on_away(i64 from_ns, i64 to_ns) noexcept { shared_.host.on_away(from_ns, to_ns); }
  bool poll_transmit(i64 now_ns, TxBurst* out) noexcept;
  // The two halves of it, for ports that send control first and may be busy with data.
  bool poll_control(i64 now_ns, TxBurst* out) noexcept { return transmit_control(now_ns, out); }
  bool poll_data(i64 now_ns, TxBurst* out) noexcept {
    return (!resend_.empty() && transmit_data(now_ns, true, out)) ||
           (!ready_.empty() && transmit_data(now_ns, false, out));
  }
  void on_timer(i64 now_ns) noexcept;
  i64 poll_timeout() const noexcept { return timers_.next_ns(); }
  // For who steps many stacks in turn: what the next call touches first is on its way meanwhile.
  void prefetch() const noexcept {
    for (std::size_t at = 0; at < sizeof(Stack); at += 64) __builtin_prefetch(reinterpret_cast<const char*>(this) + at);
    for (std::size_t i = 0; i < flows_.size() && i < 2; ++i) {
      const char* flow = reinterpret_cast<const char*>(flows_[i].get());
      for (std::size_t at = 0; at < sizeof(Flow); at += 64) __builtin_prefetch(flow + at);
    }
  }
  // What a datagram for a flow over a path will touch, once the flow itself is there.
  void prefetch(u32 index, u8 path) const noexcept {
    if (index < flows_.size() && flows_[index] != nullptr) flows_[index]->prefetch(path);
  }
  bool has_control() const noexcept { return !control_.empty() || !peer_control_.empty(); }
  bool has_events() const noexcept { return !shared_.events.empty(); }
  // Whether poll_transmit may have a resend or new data; it may still find that none can go.
  bool wants_to_send() const noexcept { return !resend_.empty() || !ready_.empty(); }
  bool poll_event(Event* out) noexcept { return shared_.events.poll(out); }

  // Live changes, on the engine's thread (stack_policies.cc). Nothing in flight is touched. With `params_only` the same
  // policy goes on with other parameters; where it has given way to `fixed` it stays away. False: out of memory.
  bool set_policy(i64 now_ns, policy::Family family, u32 flow, PolicyChoice choice, bool params_only) noexcept;
  // For all flows and peers without a choice of their own, now and later.
  bool set_default(i64 now_ns, policy::Family family, PolicyChoice choice, bool params_only) noexcept;
  // What decides for a flow now (path family: for its peer). Empty: no credit policy, or no such flow.
  PolicyChoice in_force(policy::Family family, u32 flow) noexcept;
  // Everything that a flow, a peer or the defaults refer to: what is not among it may be unloaded.
  void policies_in_use(std::vector<PolicyChoice>* out);

  const EngineCells& counters() const noexcept { return *shared_.counters; }
  const StackConfig& config() const noexcept { return shared_.config; }
  Shared& shared() noexcept { return shared_; }
  Flow* flow(u32 index) noexcept { return index < flows_.size() ? flows_[index].get() : nullptr; }
  Peer* peer(u32 index) noexcept { return index < peers_.size() ? peers_[index].get() : nullptr; }
  std::size_t storage_bytes() const noexcept;

 private:
  static constexpr i64 kIdleNs = 100'000'000;  // a flow quiet for this long gives its storage by path back

  // stack.cc
  void abandon(Flow& flow) noexcept;
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
  bool change_path(i64 now_ns, Peer& peer, PolicyChoice choice, bool params_only) noexcept;
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
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<u8> reserved_peers_, reserved_flows_;
  std::vector<u32> free_peers_, free_flows_;
  FlowQueue control_, peer_control_, resend_, ready_;
  FlowQueue block_waiters_;  // flows that were refused an eager block, as long as they want one
  TimerHeap timers_;
};

}  // namespace weft::core
