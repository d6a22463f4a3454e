// Opens, closes and fails flows and peers, and posts sends and receives. Calls that change a flow end in refresh(),
// which updates its queues and timers. See also stack_receive.cc and stack_transmit.cc.
#include "native/core/stack.h"

#include <new>
#include <utility>

namespace weft::core {
namespace {

Event failed_message(u32 index, const Flow& flow, Status reason) noexcept {
  Event event{};
  event.kind = Event::Kind::message_failed;
  event.flow = index;
  event.peer = flow.config.peer;
  event.status = reason;
  return event;
}

}  // namespace

Stack::Stack(const StackConfig& config) : shared_(config), policies_(this, &shared_, &peers_, &flows_) {}

// Destroys the flows before the peers, because flows refer to the paths of their peers.
Stack::~Stack() { flows_.clear(); }

Status Stack::reserve_peer(u32* index) noexcept {
  try {
    const Status status = peers_.reserve(index);
    if (status != Status::ok) return status;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  try {
    peer_control_.reserve(peers_.size());
    timers_.reserve_ids(flows_.size(), peers_.size());
    timers_.reserve_entries(open_flows_ + peers_.size());
    return Status::ok;
  } catch (const std::bad_alloc&) {
    peers_.release(*index);
    return Status::out_of_memory;
  }
}

Status Stack::open_peer(i64 now_ns, u32 index, const PeerConfig& config) noexcept {
  shared_.trace.now_ns = now_ns;
  if (!peers_.awaits(index)) return Status::invalid_argument;
  if (config.path_count == 0 || config.path_count > kMaxPaths || config.segment_bytes <= wire::kDataBytes ||
      config.train_bytes_max < config.segment_bytes || config.port_buffer_bytes <= 0) {
    return Status::invalid_argument;
  }
  try {
    peers_.put(index, std::make_unique<Peer>(&shared_, index, config));
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  Event event{};
  event.kind = Event::Kind::peer_connected;
  event.peer = index;
  event.value = config.path_count;
  shared_.trace.emit(event);
  return Status::ok;
}

Status Stack::reserve_flow(u32* index) noexcept {
  try {
    const Status status = flows_.reserve(index);
    if (status != Status::ok) return status;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  try {
    timers_.reserve_ids(flows_.size(), peers_.size());
    deferred_.reserve(flows_.size());
    changed_.reserve(flows_.size());
    return Status::ok;
  } catch (const std::bad_alloc&) {
    flows_.release(*index);
    return Status::out_of_memory;
  }
}

Status Stack::open_flow(i64 now_ns, u32 index, const FlowConfig& config) noexcept {
  if (!flows_.awaits(index) || deferred_.has(index)) return Status::invalid_argument;
  Peer* owner = peer(config.peer);
  if (owner == nullptr || config.stripes == 0 || config.stripe >= config.stripes) return Status::invalid_argument;
  if (owner->dead()) return Status::peer_dead;
  try {
    make_flow(index, config, owner);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  owner->on_flow_opened(flow(index));
  measure_paths(now_ns, config.peer);
  refresh(now_ns, index);
  return Status::ok;
}

// Makes the object of a flow, and room for it in the queues and among the timers. May throw std::bad_alloc; then there
// is no flow.
void Stack::make_flow(u32 index, const FlowConfig& config, Peer* owner) {
  const std::size_t count = open_flows_ + 1;
  for (FlowQueue* queue : {&control_, &resend_, &ready_, &block_waiters_}) queue->reserve(count);
  timers_.reserve_entries(count + peers_.size());
  owner->path_waiters().reserve(owner->flows() + 1);
  const PolicyChoice credit = config.own_credit ? config.credit : shared_.config.credit;
  flows_.put(index, std::make_unique<Flow>(&shared_, credit, policies_.credit_port(credit), index, config, owner));
  ++open_flows_;
}

// Measures the paths to the peer, unless they are measured.
void Stack::measure_paths(i64 now_ns, u32 index) noexcept {
  PathSet& paths = peers_[index].paths();
  paths.measure(now_ns);
  if (paths.poll_timeout() <= now_ns) queue_peer_control(index);
}

void Stack::release_flow(u32 index) noexcept {
  if (!flows_.is_reserved(index)) return;
  if (deferred_.has(index)) release_deferred(index);
  if (Flow* gone = flow(index)) {
    if (gone->waits) gone->peer->on_flow_rests();
    Peer* owner = gone->peer;
    if (gone->in_path_wait) owner->path_waiters().remove(index);
    gone->in_path_wait = false;
    const Status reason = gone->peer_closed ? gone->end_reason : Status::cancelled;
    report_failed_receives(index, *gone, reason);
    abandon(index, *gone, reason);
    if (gone->in_control) control_.remove(index);
    if (gone->in_ready) ready_.remove(index);
    if (gone->in_resend) resend_.remove(index);
    if (gone->in_room_wait) block_waiters_.remove(index);
    const u64 held = gone->rx.eager_held();
    const u32 owner_index = gone->config.peer;
    owner->on_flow_released(gone);
    flows_.destroy(index);
    --open_flows_;
    timers_.set(kNever, index);
    for (u64 i = 0; i < held; ++i) wake_block_waiters();
    if (owner->flows() == 0 && owner->dead()) on_peer_unused(owner_index);
  }
  flows_.release(index);
}

void Stack::release_peer(u32 index) noexcept {
  if (!peers_.is_reserved(index)) return;
  const Peer* gone = peer(index);
  if (gone != nullptr && gone->in_control) peer_control_.remove(index);  // the index may be reused for another peer
  timers_.set(kNever, index | TimerHeap::kPeerBit);
  peers_.release(index);
}

// Why a message finds no flow.
Status Stack::lacks(u32 index) const noexcept {
  const bool deferred = deferred_.has(index) && !peers_[deferred_.peer_of(index)].dead();
  return deferred ? Status::out_of_memory : Status::connection_closed;
}

Status Stack::post_send(i64 now_ns, u32 index, const SendPost& send) noexcept {
  Flow* target = opened(now_ns, index);
  if (target == nullptr) return lacks(index);
  if (!target->is_open()) return Status::connection_closed;
  shared_.trace.now_ns = now_ns;
  const Status status = target->tx.post(now_ns, send);
  refresh(now_ns, index);
  PathSet& paths = target->peer->paths();
  if (paths.gate().is_closed()) {  // the message waits for the peer's first answer, so probe the peer again
    paths.measure(now_ns);
    queue_peer_control(target->config.peer);
  }
  return status;
}

Status Stack::post_receive(i64 now_ns, u32 index, const ReceivePost& receive) noexcept {
  Flow* target = opened(now_ns, index);
  if (target == nullptr) {
    // Of a dead peer the home flow, which is never deferred, may hold the message, and decides.
    const bool home_decides = deferred_.has(index) && peers_[deferred_.peer_of(index)].dead();
    return home_decides ? Status::ok : lacks(index);
  }
  const bool may_hold = target->peer_closed && !target->failed;
  if (!target->is_open() && !may_hold) return Status::connection_closed;
  const u64 held = target->rx.eager_held();
  shared_.trace.now_ns = now_ns;
  const Status status = target->rx.post(now_ns, receive);
  if (target->rx.eager_held() < held) wake_block_waiters();
  if (status == Status::message_too_long) {
    give_up_flow(now_ns, index, status);
    return Status::ok;  // the event flow_failed reports the error
  }
  // The peer has closed, so this receive can only take an eager message that arrived before. Only the home flow can
  // hold it; that flow fails if it holds none.
  if (may_hold && target->config.stripe == kHomeFlow && target->rx.waits()) fail_flow(index, target->end_reason);
  refresh(now_ns, index);
  return status;
}

void Stack::on_staged(u32 index) noexcept {
  Flow* target = flow(index);
  if (target == nullptr || !target->is_open()) return;
  target->rx.on_emptied();
  if (target->rx.room_due()) queue_control(index);
  queue_ready(index);
}

void Stack::close_flow(i64 now_ns, u32 index, Status reason) noexcept {
  Flow* target =
      opened(now_ns, index);  // opens a deferred flow, because the peer waits for a close packet of each flow
  if (target == nullptr) {
    // It holds nothing, and there is nobody to tell.
    if (deferred_.has(index)) report_ended(index, Event::Kind::flow_closed, reason);
    return;
  }
  if (target->peer_closed) report_failed_receives(index, *target, target->end_reason);
  target->peer_closed = false;  // from now on, post_receive() fails even if an eager message is held
  if (target->closer.state() != Closer::State::open) return;
  shared_.trace.now_ns = now_ns;
  report_failed_receives(index, *target, reason);
  abandon(index, *target, reason);
  if (target->peer->dead()) {
    target->closer.on_peer_close();
  } else {
    target->closer.close(reason, now_ns, shared_.config.peer_silence_ns);
  }
  queue_control(index);
  refresh(now_ns, index);
}

// Drops the flow's sends. This makes room on the paths without an acknowledgment, so this function wakes the flows that
// wait for room.
void Stack::abandon(u32 index, Flow& flow, Status reason) noexcept {
  if (shared_.trace.wants(Event::Kind::message_failed)) {
    Event event = failed_message(index, flow, reason);
    flow.tx.each_outstanding([&](u64 message, u64 bytes) {
      event.message = message;
      event.value = bytes;
      shared_.trace.emit(event);
    });
  }
  flow.tx.abandon();
  wake_path_waiters(*flow.peer);
}

// Reports the incomplete receives of a flow to the trace sinks, as failed. Not called while a flow may still complete
// receives from eager messages.
void Stack::report_failed_receives(u32 index, Flow& flow, Status reason) noexcept {
  if (!shared_.trace.wants(Event::Kind::message_failed) || std::exchange(flow.failures_reported, true)) return;
  Event event = failed_message(index, flow, reason);
  event.receives = true;
  flow.rx.each_outstanding([&](u64 message, u64 bytes) {
    event.message = message;
    event.value = bytes;
    shared_.trace.emit(event);
  });
}

void Stack::fail_flow(u32 index, Status reason) noexcept {
  Flow* target = flow(index);
  if (target == nullptr || target->failed) return;
  target->failed = true;
  changed_.note(index);
  report_failed_receives(index, *target, reason);
  abandon(index, *target, reason);
  Event event{};
  event.kind = Event::Kind::flow_failed;
  event.flow = index;
  event.status = reason;
  shared_.report(event);
}

void Stack::give_up_flow(i64 now_ns, u32 index, Status reason) noexcept {
  close_flow(now_ns, index, reason);
  fail_flow(index, reason);
}

// Handles a peer that sends nothing more. Eager messages that have arrived can still be received; the owner, who knows
// all flows of the connection, knows when none is left.
void Stack::end_flow(u32 index, Flow& flow, Status reason) noexcept {
  flow.closer.on_peer_close();
  flow.peer_closed = true;
  changed_.note(index);
  flow.end_reason = reason;
  abandon(index, flow, reason);
  Event event{};
  event.kind = Event::Kind::peer_closed;
  event.flow = index;
  event.value = flow.rx.held();
  event.status = reason;
  event.receive_waits = flow.rx.waits();
  shared_.report(event);
}

void Stack::bury(u32 index, Peer& peer, Status reason) noexcept {
  peer.kill();
  Event event{};
  event.kind = Event::Kind::peer_dead;
  event.peer = index;
  event.status = reason;
  shared_.report(event);
  if (peer.flows() == 0) on_peer_unused(index);
}

void Stack::on_peer_unused(u32 index) noexcept {
  Event event{};
  event.kind = Event::Kind::peer_released;
  event.peer = index;
  shared_.report(event);
}

void Stack::fail_peer(i64 now_ns, u32 index, Status reason) noexcept {
  Peer* gone = peer(index);
  if (gone == nullptr || gone->dead()) return;
  bury(index, *gone, reason);
  end_deferred(index, Event::Kind::peer_closed, reason);
  for (Flow* each = gone->first_flow(); each != nullptr; each = each->link.next) {
    if (each->is_open()) end_flow(each->index, *each, reason);
    if (each->closer.state() == Closer::State::closing) each->closer.on_confirm();
    queue_control(each->index);
    refresh(now_ns, each->index);
  }
}

void Stack::give_up_peer(i64 now_ns, u32 index, Status reason) noexcept {
  Peer* lost = peer(index);
  if (lost == nullptr || lost->dead()) return;
  for (Flow* each = lost->first_flow(); each != nullptr; each = each->link.next) {
    if (!each->peer_closed) give_up_flow(now_ns, each->index, reason);
  }
  bury(index, *lost, reason);
  end_deferred(index, Event::Kind::flow_failed, reason);
}

void Stack::probe_peer(u32 index) noexcept {
  Peer* target = peer(index);
  if (target == nullptr || target->dead()) return;
  target->solicit();
  queue_peer_control(index);
}

// Updates a flow's queues and timers and the peer's count of waiting flows after a change of the flow.
void Stack::refresh(i64 now_ns, u32 index) noexcept {
  Flow& target = flows_[index];
  const bool waits = target.is_open() && (target.tx.has_outstanding() || target.rx.awaits());
  if (waits != target.waits) {
    target.waits = waits;
    if (waits) {
      target.peer->on_flow_waits(now_ns);
      schedule_peer(target.config.peer);
    } else {
      target.peer->on_flow_rests();
    }
  }
  target.active_ns = now_ns;
  if (target.is_open()) {
    if (target.tx.is_too_long()) return give_up_flow(now_ns, index, Status::message_too_long);
    if (target.rx.due(now_ns)) queue_control(index);
    if (target.tx.has_outstanding()) queue_ready(index);
    const bool holds_storage = target.tx.bytes_held() + target.rx.bytes_held() != 0;
    if (holds_storage && target.idle_ns == kNever) target.idle_ns = now_ns + kIdleNs;
  }
  schedule_flow(index);
}

std::size_t Stack::storage_bytes() const noexcept {
  return shared_.send_slabs.bytes_held() + shared_.bitmaps.bytes_held() + shared_.eager_blocks.bytes_held();
}

}  // namespace weft::core
