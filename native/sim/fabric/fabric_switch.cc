// A switch advances a port when a packet arrives for it, and at the end of the window. With PFC or a shared buffer it
// advances all ports in use at each arrival: PFC frames depend on when each packet leaves, and a packet's room on what
// has left.
#include "native/sim/fabric/fabric_switch.h"

#include <algorithm>

#include "native/sim/fabric/fabric_shard.h"

namespace weft::sim {

void handle_special(FabricShared* shared, const FabricDue& due) {
  FabricNet& net = *shared->net;
  if (due.packet != nullptr) {
    net.ports[due.port - FabricDue::kPause].pause(due.at_ps, due.packet->pause, shared->sink);
    shared->packets->give(due.packet);
  } else if (due.port >= FabricDue::kChange && due.port != FabricDue::kSelf) {
    const PortChange& change = shared->plan->changes[due.port - FabricDue::kChange];
    net.ports[change.port].apply(due.at_ps, change, shared->sink);
  }
}

FabricSwitch::FabricSwitch(u32 node, const FabricPlan& plan, const FabricNet& net)
    : node_(node), random_(plan.seed ^ u64{node} * 0x9E3779B97F4A7C15u) {
  if (plan.ecmp == Ecmp::drill) last_best_.assign(plan.set_begin.size(), 0);
  if (plan.pause_bytes == 0) return;
  for (u32 port = 0; port < plan.ports.size(); ++port) {
    if (plan.ports[port].to == node && net.opposite[port] != core::kNone) ingress_.push_back({port, 0, false});
  }
}

FabricSwitch::Ingress* FabricSwitch::ingress_of(u32 port) noexcept {
  for (Ingress& ingress : ingress_) {
    if (ingress.port == port) return &ingress;
  }
  return nullptr;
}

// The port for a packet where switches select ports by their queues. Ports whose links are down come last. The ports
// need not be advanced for this: when a port will have sent all it holds depends only on what has arrived there.
u32 FabricSwitch::port_by_queues(const FabricNet& net, u32 to, i64 now_ps) {
  const FabricNet::Ways ways = net.ways(node_, to, now_ps);
  if (ways.count <= 1) return ways.count == 0 ? core::kNone : ways.ports[0];
  const auto draw = [&] { return static_cast<u32>(random_.next() % ways.count); };
  const auto wait_ps = [&](u32 way) {
    const FabricPort& port = net.ports[ways.ports[way]];
    return port.up() ? std::max(port.idle_ps(), now_ps) : core::kNever;
  };
  u32 best = draw();
  i64 best_ps = wait_ps(best);
  const auto consider = [&](u32 way) {
    const i64 at_ps = wait_ps(way);
    if (at_ps >= best_ps) return;
    best = way;
    best_ps = at_ps;
  };
  if (net.ecmp() == Ecmp::drill) {
    consider(draw());
    consider(last_best_[ways.set]);
    last_best_[ways.set] = best;
  } else {
    for (u32 i = 1, way = best; i < ways.count; ++i) {
      way = way + 1 == ways.count ? 0 : way + 1;
      consider(way);
    }
  }
  return ways.ports[best];
}

void FabricSwitch::touch(FabricNet& net, u32 port) {
  if (net.ports[port].touched()) return;
  net.ports[port].set_touched(true);
  touched_.push_back(port);
}

void FabricSwitch::handle(FabricShared* shared, const FabricDue* dues, std::size_t count, i64 end_ps) {
  FabricNet& net = *shared->net;
  const bool pfc = !ingress_.empty(), all = pfc || !net.buffers.empty(), at_arrival = by_queues(net.ecmp());
  // Ports with a due wake-up have queued packets, so these ports are marked at the start of the time window, to be
  // advanced at its end.
  ways_.resize(count);
  constexpr std::size_t kAhead = 12;
  for (std::size_t i = 0; i < std::min(kAhead, count); ++i) __builtin_prefetch(dues[i].packet);
  for (std::size_t i = 0; i < count; ++i) {
    const FabricDue& due = dues[i];
    if (i + kAhead < count) __builtin_prefetch(dues[i + kAhead].packet);
    if (due.is_packet()) {
      if (at_arrival) continue;  // its port is selected below, at the time of its arrival
      ways_[i] = net.route(node_, due.packet, due.at_ps);
      if (ways_[i] != core::kNone) net.ports[ways_[i]].prefetch(due.packet->data);
    } else if (due.packet == nullptr && due.port < FabricDue::kPause) {
      net.ports[due.port].set_wake_pending(false);
      touch(net, due.port);
    }
  }
  prefetch_queues(net);
  for (std::size_t i = 0; i < count; ++i) {
    const FabricDue& due = dues[i];
    now_ps_ = due.at_ps;
    if (all) {
      for (const u32 port : touched_) net.ports[port].advance(due.at_ps, shared->sink);
    }
    if (!due.is_packet()) {
      handle_special(shared, due);
      if (due.port >= FabricDue::kPause && due.port < FabricDue::kChange) touch(net, due.port - FabricDue::kPause);
      if (due.port >= FabricDue::kChange && due.port != FabricDue::kSelf) {
        touch(net, shared->plan->changes[due.port - FabricDue::kChange].port);
      }
      continue;
    }
    FabricPacket* packet = due.packet;
    const u32 port = at_arrival ? port_by_queues(net, packet->to, due.at_ps) : ways_[i];
    if (port == core::kNone) {
      shared->sink->lose(packet);
      continue;
    }
    packet->port = due.port;
    touch(net, port);
    if (pfc) this->count(shared, *packet, due.at_ps);
    net.ports[port].offer(due.at_ps, packet, shared->sink);
  }
  for (const u32 port : touched_) {
    net.ports[port].advance(end_ps - 1, shared->sink);
    net.ports[port].set_touched(false);
  }
  for (const u32 index : touched_) {
    FabricPort& port = net.ports[index];
    if (port.wake_pending() || port.next_ps() == core::kNever) continue;
    port.set_wake_pending(true);
    shared->sink->look(node_, index, std::max(port.next_ps(), end_ps));
  }
  touched_.clear();
}

// Prefetches the packets that wait longest in the ports with a wake-up. Each turn follows one link of each queue, so
// that the memory accesses overlap.
void FabricSwitch::prefetch_queues(const FabricNet& net) {
  constexpr int kTurns = 6;
  heads_.clear();
  for (const u32 port : touched_) heads_.push_back(net.ports[port].head());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const FabricPacket*& packet : heads_) {
      if (packet == nullptr) continue;
      packet = packet->next;
      __builtin_prefetch(packet);
    }
  }
}

// Counts a packet for PFC. Only data counts, and only data is paused, so that a pause cannot stop the packets that
// would end it.
void FabricSwitch::count(FabricShared* shared, const FabricPacket& packet, i64 now_ps) {
  Ingress* ingress = packet.data ? ingress_of(packet.port) : nullptr;
  if (ingress == nullptr) return;
  ingress->bytes += i64{packet.header_bytes} + packet.payload_bytes;
  if (!ingress->paused && ingress->bytes > shared->plan->pause_bytes) say(shared, *ingress, true, now_ps);
}

void FabricSwitch::on_left(FabricShared* shared, const FabricPacket& packet, i64 at_ps) {
  Ingress* ingress = packet.data ? ingress_of(packet.port) : nullptr;
  if (ingress == nullptr) return;
  ingress->bytes -= i64{packet.header_bytes} + packet.payload_bytes;
  if (ingress->paused && ingress->bytes <= shared->plan->resume_bytes) {
    say(shared, *ingress, false, at_ps > 0 ? at_ps : now_ps_);
  }
}

void FabricSwitch::say(FabricShared* shared, Ingress& ingress, bool pause, i64 now_ps) {
  ingress.paused = pause;
  FabricPacket* frame = shared->packets->take();
  frame->block = nullptr;
  frame->header_bytes = 0;
  frame->data = false;
  frame->pause = pause;
  frame->resume = !pause;
  // A PFC frame takes the link's delay but no sending time, because it is short and goes before everything else. Two
  // frames to one port never arrive at the same time, so that a pause and a resume after it stay in order.
  frame->due_ps = std::max(now_ps + shared->plan->ports[ingress.port].delay_ns * 1000, ingress.said_ps + 1);
  ingress.said_ps = frame->due_ps;
  shared->sink->arrive(frame, FabricDue::kPause + ingress.port, shared->plan->ports[ingress.port].from);
}

}  // namespace weft::sim
