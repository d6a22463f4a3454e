// Passes datagrams to flows and peers. Until token, index and length are verified, only counters change (P-6). Packets
// for closed or unknown flows are not answered, because an answer would help an unauthenticated sender.
#include "native/core/stack.h"

namespace weft::core {
namespace {

i64 bytes_of(const RxDatagram& datagram) noexcept { return i64{datagram.header_bytes} + datagram.payload_bytes; }

}  // namespace

void Stack::on_datagram(i64 now_ns, const RxDatagram& datagram, i64 arrived_ns) noexcept {
  shared_.trace.now_ns = now_ns;
  EngineCells& counters = *shared_.counters;
  shared_.host.on_datagram(now_ns, arrived_ns);
  wire::Packet packet;
  switch (wire::decode(datagram.header, datagram.header_bytes, datagram.payload_bytes, &packet)) {
    case wire::Verdict::ok:
      break;
    case wire::Verdict::bad_magic:
      ++counters.malformed;
      ++counters.bad_magic;
      return;
    case wire::Verdict::bad_version:
      ++counters.bad_version;
      return;
    case wire::Verdict::bad_crc:
      ++counters.bad_crc;
      return;
    default:
      ++counters.malformed;
      return;
  }
  if (packet.common.type == wire::Type::probe || packet.common.type == wire::Type::probe_reply) {
    static_cast<void>(on_peer_packet(now_ns, packet, datagram));
    return;
  }
  const u32 index = packet.common.flow;
  Flow* target = flow(index);
  if (target == nullptr) target = open_deferred_for(now_ns, packet.common);
  if (target == nullptr || target->config.local_token != packet.common.token) {
    ++counters.stray;
    return;
  }
  if (packet.common.path >= target->peer->paths().count()) {
    ++counters.malformed;
    return;
  }
  target->peer->paths().gate().on_arrived(bytes_of(datagram));
  if (!on_flow_packet(now_ns, index, *target, packet, datagram)) return;
  // The flow still exists, even if handling the packet made it fail: only its owner releases it.
  refresh(now_ns, index);
}

bool Stack::on_flow_packet(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet,
                           const RxDatagram& datagram) noexcept {
  switch (packet.common.type) {
    case wire::Type::close:
      on_peer_close(now_ns, index, flow, packet.close);
      return true;
    case wire::Type::close_ack:
      flow.closer.on_confirm();
      queue_control(index);
      return true;
    default:
      break;
  }
  if (!flow.is_open()) return true;
  switch (packet.common.type) {
    case wire::Type::data:
      return on_data(now_ns, index, flow, packet, datagram);
    case wire::Type::ack:
      if (!flow.tx.on_ack(now_ns, packet.common, packet.ack, datagram.hops))
        return refuse(&shared_.counters->malformed);
      wake_path_waiters(*flow.peer);
      if (flow.peer->paths().poll_timeout() <= now_ns) queue_peer_control(flow.config.peer);
      return true;
    case wire::Type::advert:
      return on_advert(now_ns, index, flow, packet.advert);
    case wire::Type::advert_ack:
      flow.rx.on_advert_ack(now_ns, packet.advert_ack);
      return true;
    case wire::Type::demand:
      flow.rx.on_demand(now_ns, packet.common.path, packet.demand);
      return true;
    case wire::Type::nack:
      if (!flow.tx.on_nack(now_ns, packet.nack)) return refuse(&shared_.counters->malformed);
      wake_path_waiters(*flow.peer);
      return true;
    default:
      return refuse(&shared_.counters->malformed);
  }
}

bool Stack::on_data(i64 now_ns, u32 index, Flow& flow, const wire::Packet& packet,
                    const RxDatagram& datagram) noexcept {
  switch (flow.rx.on_data(now_ns, packet, datagram)) {
    case FlowReceiver::Outcome::bad_crc:
      return refuse(&shared_.counters->bad_crc);
    case FlowReceiver::Outcome::missing:
      return false;
    case FlowReceiver::Outcome::refused:
      return refuse(&shared_.counters->malformed);
    case FlowReceiver::Outcome::too_long:
      give_up_flow(now_ns, index, Status::message_too_long);
      return true;
    case FlowReceiver::Outcome::no_block:
      wait_for_block(index);
      return true;
    case FlowReceiver::Outcome::no_room:
    case FlowReceiver::Outcome::duplicate:
      return true;  // the datagram may be a replay, so it is no sign that the path works
    case FlowReceiver::Outcome::trimmed:
    case FlowReceiver::Outcome::taken:
      break;
  }
  if (flow.peer->paths().on_arrival(now_ns, packet.common.path)) schedule_peer(flow.config.peer);
  return true;
}

// Handles an advertisement. Data that it permits confirms it; a confirmation packet is sent only if no such data is
// sent soon.
bool Stack::on_advert(i64 now_ns, u32 index, Flow& flow, const wire::Advert& advert) noexcept {
  const u64 before = flow.tx.known_adverts();
  if (!flow.tx.on_advert(advert)) return refuse(&shared_.counters->malformed);
  if (flow.tx.known_adverts() == before) {
    flow.confirm_advert = true;  // a repeated advertisement: the confirmation was lost or late
    queue_control(index);
    return true;
  }
  flow.peer->on_heard(now_ns);
  flow.tx.on_progress(now_ns);
  if (flow.confirm_ns == kNever) flow.confirm_ns = now_ns + shared_.config.rto_ns_min / 2;
  return true;
}

void Stack::on_peer_close(i64 now_ns, u32 index, Flow& flow, const wire::Close& close) noexcept {
  flow.confirm_close = true;
  queue_control(index);
  if (!flow.is_open()) {
    flow.closer.on_confirm();  // both ends closed at the same time: each close packet confirms the other
    return;
  }
  // Segments below cumulative_seq arrived before the peer closed, even if their acknowledgments were lost.
  if (!flow.tx.on_final(now_ns, close.cumulative_seq)) ++shared_.counters->malformed;
  const bool known = close.reason > static_cast<u32>(Status::would_block) && is_status(close.reason);
  const auto reason = known ? static_cast<Status>(close.reason) : Status::connection_closed;
  if (reason != Status::connection_closed && reason != Status::cancelled) {
    flow.closer.on_peer_close();
    fail_flow(index, reason);
    return;
  }
  end_flow(index, flow, Status::connection_closed);
}

bool Stack::on_peer_packet(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram) noexcept {
  const u32 index = packet.common.flow;
  Peer* target = peer(index);
  if (target == nullptr || target->config().local_token != packet.common.token) return refuse(&shared_.counters->stray);
  if (packet.common.path >= target->paths().count()) return refuse(&shared_.counters->malformed);
  target->paths().gate().on_arrived(bytes_of(datagram));
  if (packet.common.type == wire::Type::probe) {
    target->paths().on_probed_by_peer(now_ns, packet.common.path);
    target->on_probe(packet.common.path, packet.probe);
    queue_peer_control(index);
  } else if (!target->on_keepalive_reply(now_ns, packet.common.path, packet.probe.probe_id)) {
    if (target->paths().on_probe_reply(now_ns, packet.common.path, packet.probe.probe_id)) {
      on_probed(now_ns, target, packet.common.path);
    }
  }
  if (packet.common.type == wire::Type::probe_reply) wake_path_waiters(*target);
  schedule_peer(index);
  return true;
}

// Tells the peer's flows with segments in flight that a probe on the path was answered.
void Stack::on_probed(i64 now_ns, Peer* peer, u8 path) noexcept {
  for (Flow* each = peer->first_flow(); each != nullptr; each = each->link.next) {
    if (!each->is_open() || !each->tx.has_inflight()) continue;
    each->tx.on_probed(now_ns, path);
    refresh(now_ns, each->index);
  }
}

void Stack::wait_for_block(u32 index) noexcept {
  if (flows_[index].in_room_wait) return;
  flows_[index].in_room_wait = true;
  block_waiters_.push(index);
}

// Offers a free eager block to the flow that has waited longest and may take one. A flow that wants more blocks goes to
// the end of the queue.
void Stack::wake_block_waiters() noexcept {
  for (std::size_t turns = block_waiters_.size(); turns != 0; --turns) {
    const u32 index = block_waiters_.pop();
    Flow& target = flows_[index];
    target.in_room_wait = target.is_open() && target.rx.wants_block();
    if (!target.in_room_wait) continue;
    block_waiters_.push(index);
    if (!shared_.may_hold_eager(target.rx.eager_held())) continue;
    target.rx.offer_room();
    queue_control(index);
    return;
  }
}

void Stack::wake_path_waiters(Peer& peer) noexcept {
  FlowQueue& waiters = peer.path_waiters();
  while (!waiters.empty()) {
    const u32 index = waiters.pop();
    Flow* target = flow(index);
    if (target == nullptr || !target->in_path_wait) continue;
    target->in_path_wait = false;
    queue_ready(index);
  }
}

}  // namespace weft::core
