// Schedules sending and runs the timers. Control packets go first, then resent segments, then new data, one burst per
// flow by deficit round robin. A flow that cannot send leaves its queue until a packet, a timer or a new send makes it
// ready.
#include <algorithm>

#include "native/core/stack.h"

namespace weft::core {
namespace {

// Bytes added to a flow's deficit per turn. It is the size of a full train, so that every turn can send one.
constexpr i64 kQuantumBytes = 64 * 1024;

wire::Common begin(const Flow& flow, wire::Type type, u8 path, TxBurst* out) noexcept {
  wire::Common common;
  common.token = flow.config.remote_token;
  common.flow = flow.config.remote_flow;
  common.type = type;
  common.path = path;
  out->peer = flow.config.peer;
  out->path = path;
  out->count = 1;
  out->payload[0] = {};
  return common;
}

void seal(std::size_t bytes, TxBurst* out) noexcept {
  out->header_bytes = static_cast<u16>(bytes);
  out->datagram_bytes = out->header_bytes;
}

void write_small(Flow& flow, wire::Type type, u8 path, u64 value, TxBurst* out) noexcept {
  const wire::Common common = begin(flow, type, path, out);
  std::size_t bytes = 0;
  switch (type) {
    case wire::Type::advert_ack:
      bytes = wire::encode_advert_ack(out->headers, common, {static_cast<u32>(value)});
      break;
    default:
      bytes = wire::encode_close(out->headers, common, {static_cast<u32>(value), flow.rx.cumulative_seq()});
      break;
  }
  seal(bytes, out);
}

// Path for a control packet: a usable path chosen at random; any path if none is usable.
u8 control_path(Shared& shared, const PathSet& paths) noexcept {
  const auto first = static_cast<std::size_t>(shared.random.next() % paths.count());
  for (std::size_t i = 0; i < paths.count(); ++i) {
    const std::size_t path = (first + i) % paths.count();
    if (paths.path(path).usable) return static_cast<u8>(path);
  }
  return static_cast<u8>(first);
}

// Whether a control packet may be sent to the peer. Before an unauthenticated peer first answers, a packet may be
// refused, and is then treated as a lost packet.
bool admits(Peer& peer, const TxBurst& packet) noexcept {
  return peer.paths().gate().admits(static_cast<i64>(packet.total_bytes()));
}

}  // namespace

void Stack::queue_control(u32 index) noexcept {
  if (flows_[index].in_control) return;
  flows_[index].in_control = true;
  control_.push(index);
}

void Stack::queue_peer_control(u32 index) noexcept {
  if (peers_[index].in_control) return;
  peers_[index].in_control = true;
  peer_control_.push(index);
}

void Stack::queue_ready(u32 index) noexcept {
  Flow& target = flows_[index];
  if (target.in_path_wait) return;
  if (target.tx.has_lost()) {
    if (!target.in_resend) {
      target.in_resend = true;
      resend_.push(index);
    }
  } else if (!target.in_ready) {
    target.in_ready = true;
    target.deficit_bytes = 0;
    ready_.push(index);
  }
}

bool Stack::poll_transmit(i64 now_ns, TxBurst* out) noexcept {
  shared_.trace.now_ns = now_ns;
  return transmit_control(now_ns, out) || transmit_data(now_ns, true, out) || transmit_data(now_ns, false, out);
}

bool Stack::transmit_control(i64 now_ns, TxBurst* out) noexcept {
  while (!control_.empty()) {
    const u32 index = control_.front();
    Flow* target = flow(index);
    if (target != nullptr && transmit_flow_control(now_ns, *target, out)) {
      schedule_flow(index);
      if (admits(*target->peer, *out)) return true;
      continue;
    }
    control_.pop();
    if (target == nullptr) continue;  // the flow was released while it was queued
    target->in_control = false;
    if (target->closer.state() == Closer::State::closed) {
      if (target->closed_reported) continue;
      target->closed_reported = true;
      changed_.note(index);
      Event event{};
      event.kind = Event::Kind::flow_closed;
      event.flow = index;
      shared_.report(event);
    } else {
      schedule_flow(index);
    }
  }
  while (!peer_control_.empty()) {
    const u32 index = peer_control_.front();
    Peer* target = peer(index);
    const bool sent = target != nullptr && target->poll_transmit(now_ns, out);
    if (target != nullptr && target->paths().take_revived()) wake_path_waiters(*target);
    if (sent && admits(*target, *out)) return true;
    if (sent) continue;
    peer_control_.pop();
    if (target == nullptr) continue;
    target->in_control = false;
    schedule_peer(index);
  }
  return false;
}

bool Stack::transmit_flow_control(i64 now_ns, Flow& flow, TxBurst* out) noexcept {
  PathSet& paths = flow.peer->paths();
  const u8 path = control_path(shared_, paths);
  if (flow.confirm_close) {
    flow.confirm_close = false;
    write_small(flow, wire::Type::close_ack, path, 0, out);
    return true;
  }
  if (flow.closer.poll(now_ns, paths.rto_ns(path), shared_.config.rto_ns_max)) {
    write_small(flow, wire::Type::close, path, static_cast<u64>(flow.closer.reason()), out);
    return true;
  }
  if (!flow.is_open()) return false;
  if (flow.confirm_advert) {
    flow.confirm_advert = false;
    write_small(flow, wire::Type::advert_ack, path, flow.tx.known_adverts(), out);
    return true;
  }
  wire::Demand demand;
  if (flow.tx.poll_demand(now_ns, &demand)) {
    seal(wire::encode_demand(out->headers, begin(flow, wire::Type::demand, path, out), demand), out);
    return true;
  }
  return flow.rx.poll_transmit(now_ns, path, paths.rto_ns(path), out);
}

bool Stack::transmit_data(i64 now_ns, bool resend, TxBurst* out) noexcept {
  FlowQueue& queue = resend ? resend_ : ready_;
  for (std::size_t turns = queue.size(); turns != 0; --turns) {
    const u32 index = queue.pop();
    Flow* target = flow(index);
    if (target == nullptr) continue;
    (resend ? target->in_resend : target->in_ready) = false;
    if (!target->is_open()) continue;
    if (target->peer->paths().gate().is_closed()) {  // data waits for the peer's first answer
      target->in_path_wait = true;
      target->peer->path_waiters().push(index);
      continue;
    }
    target->deficit_bytes = std::min(target->deficit_bytes + kQuantumBytes, 2 * kQuantumBytes);
    const i64 deficit = target->deficit_bytes;
    const FlowSender::Blocked blocked = target->tx.poll_transmit(now_ns, deficit, out);
    if (blocked == FlowSender::Blocked::sent) {
      const i64 left = deficit - static_cast<i64>(out->total_bytes());
      queue_ready(index);  // this clears the deficit; the next line restores it, because the flow keeps its turn
      target->deficit_bytes = left;
      schedule_flow(index);
      return true;
    }
    target->deficit_bytes = 0;
    if (blocked == FlowSender::Blocked::paths) {
      target->in_path_wait = true;
      target->peer->path_waiters().push(index);
    }
    if (blocked == FlowSender::Blocked::credit) queue_control(index);
    const bool stuck = blocked == FlowSender::Blocked::memory ||
                       (blocked == FlowSender::Blocked::window && !target->tx.has_inflight());
    if (stuck) target->retry_ns = now_ns + shared_.config.rto_ns_min;
    if (target->tx.is_too_long()) refresh(now_ns, index);
    schedule_flow(index);
  }
  return false;
}

// Sets the timer of a flow that has changed.
void Stack::schedule_flow(u32 index) noexcept {
  changed_.note(index);
  Flow& target = flows_[index];
  // A flow in the control queue needs no timer for its close packets, because the next poll_transmit() examines it.
  i64 at_ns = std::min(target.idle_ns, target.retry_ns);
  if (!target.in_control) at_ns = std::min(at_ns, target.closer.poll_timeout());
  if (target.is_open()) {
    at_ns = std::min({at_ns, target.tx.check_ns(), target.rx.poll_timeout(), target.confirm_ns});
    at_ns = std::min(at_ns, target.stuck_ns(shared_.config.peer_silence_ns));
    if (!target.in_control) at_ns = std::min({at_ns, target.tx.demand_ns(), target.rx.ack_ns()});
    if (!target.in_ready && !target.in_resend) at_ns = std::min(at_ns, target.tx.pace_ns());
  }
  if (at_ns >= target.scheduled_ns) return;
  target.scheduled_ns = at_ns;
  timers_.set(at_ns, index);
}

void Stack::schedule_peer(u32 index) noexcept {
  Peer& target = peers_[index];
  const i64 at_ns = target.poll_timeout();
  if (at_ns >= target.scheduled_ns) return;
  target.scheduled_ns = at_ns;
  timers_.set(at_ns, index | TimerHeap::kPeerBit);
}

void Stack::on_timer(i64 now_ns) noexcept {
  shared_.trace.now_ns = now_ns;
  TimerHeap::Entry due;
  while (timers_.pop_due(now_ns, &due)) {
    if ((due.id & TimerHeap::kPeerBit) != 0) {
      on_peer_timer(now_ns, due.id & ~TimerHeap::kPeerBit);
      continue;
    }
    Flow* target = flow(due.id);
    if (target == nullptr || target->scheduled_ns != due.at_ns) continue;
    target->scheduled_ns = kNever;
    on_flow_timer(now_ns, due.id);
  }
}

void Stack::on_flow_timer(i64 now_ns, u32 index) noexcept {
  Flow& target = flows_[index];
  if (target.closer.poll_timeout() <= now_ns) queue_control(index);
  if (target.idle_ns <= now_ns) {
    const bool idle = now_ns - target.active_ns >= kIdleNs && !target.tx.has_outstanding();
    target.idle_ns = idle ? kNever : std::max(target.active_ns, now_ns - kIdleNs / 2) + kIdleNs;
    if (idle) {
      target.tx.release_idle();
      target.rx.release_idle();
    }
  }
  if (target.retry_ns <= now_ns) target.retry_ns = kNever;
  if (target.is_open() && target.stuck_ns(shared_.config.peer_silence_ns) <= now_ns) judge(now_ns, index);
  if (target.is_open()) {
    if (target.confirm_ns <= now_ns) {
      target.confirm_ns = kNever;
      target.confirm_advert = !target.tx.adverts_confirmed_by_data();
      if (target.confirm_advert) queue_control(index);
    }
    target.tx.on_timer(now_ns);
    target.rx.on_timer(now_ns);
    if (target.tx.has_outstanding()) {
      queue_ready(index);
      queue_control(index);  // the flow may have to send a credit request
    }
    if (target.peer->paths().poll_timeout() <= now_ns) queue_peer_control(target.config.peer);
    wake_path_waiters(*target.peer);
  }
  if (target.is_open() && target.rx.due(now_ns)) queue_control(index);
  schedule_flow(index);
  schedule_peer(target.config.peer);
}

// Reports a flow without progress, or gives it up. If its peer is not heard at all, the peer's timer handles that
// instead.
void Stack::judge(i64 now_ns, u32 index) noexcept {
  Flow& target = flows_[index];
  target.judged_ns = now_ns;
  if (now_ns - target.peer->heard_ns() >= shared_.config.peer_silence_ns) return;
  Event event{};
  event.kind = Event::Kind::flow_stuck;
  event.flow = index;
  event.peer = target.config.peer;
  shared_.report(event);
  if (!shared_.config.external_failure_detector) give_up_flow(now_ns, index, Status::no_progress);
}

void Stack::on_peer_timer(i64 now_ns, u32 index) noexcept {
  Peer* target = peer(index);
  if (target == nullptr) return;
  target->scheduled_ns = kNever;
  if (target->dead()) return;
  // Other flows of its connection may have completed the receives for which a flow waits. Then it does not wait for the
  // peer any more, and must not make the peer count as silent.
  for (Flow* each = target->first_flow(); target->quiet(now_ns) && each != nullptr; each = each->link.next) {
    if (!each->waits || each->rx.waits()) continue;
    each->rx.forget_elsewhere();
    refresh(now_ns, each->index);
  }
  const i64 silence_ns = shared_.config.peer_silence_ns;
  if (!shared_.config.external_failure_detector && target->silent(now_ns)) {
    give_up_peer(now_ns, index, Status::peer_silent);
    return;
  }
  const bool told = target->notified_ns != kNever && now_ns - target->notified_ns < silence_ns / 4;
  if (shared_.config.external_failure_detector && target->unanswered(now_ns) && !told) {
    target->notified_ns = now_ns;
    Event event{};
    event.kind = Event::Kind::peer_quiet;
    event.peer = index;
    shared_.report(event);
  }
  queue_peer_control(index);
}

}  // namespace weft::core
