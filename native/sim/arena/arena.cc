// The arena's event loop: handles the next event, then lets every affected host do all that it can at that time. Setup
// is in arena_setup.cc, counting and checks are in arena_checks.cc.
#include "native/sim/arena/arena.h"

#include <algorithm>

#include "native/policy/loader.h"
#include "native/sim/arena/arena_state.h"

namespace weft::sim {
namespace {

// The address of all payload. It is never read, because place_payload is off and no CRC covers it; it only has to be
// non-null.
u8 nowhere[1];

}  // namespace

core::Stack& Arena::stack(u32 host) { return hosts_[host]->stack; }

const Link& Arena::path(u32 index) const { return links_[forward_ + index]; }

void Arena::touch(u32 host) {
  if (hosts_[host]->touched) return;
  hosts_[host]->touched = true;
  touched_.push_back(host);
}

bool Arena::step() {
  const i64 next_ns = agenda_.next_ns();
  if (next_ns == core::kNever || next_ns > kBeginNs + plan_.limit_ns) {
    now_ns_ = kBeginNs + plan_.limit_ns;
    return false;
  }
  now_ns_ = next_ns;
  ++report_.steps;
  core::TimerHeap::Entry due;
  while (agenda_.pop_due(now_ns_, &due)) wake(due.id);
  // The list does not grow during the loop, because hosts affect each other only through links.
  for (const u32 host : touched_) {
    hosts_[host]->touched = false;
    pump(host);
  }
  touched_.clear();
  return endless_ || unfinished_ != 0;
}

void Arena::wake(u32 id) {
  if (id < links_at_) {
    touch(id);
  } else if (id < starts_at_) {
    drain_link(id - links_at_);
  } else if (id < stops_at_) {
    flows_[id - starts_at_]->started = true;
    post(*flows_[id - starts_at_]);
  } else if (id < changes_at_) {
    Flow& flow = *flows_[id - stops_at_];
    flow.stopped = true;
    if (flow.plan.messages != 0 && flow.finished_ns < 0) --unfinished_;
    hosts_[flow.plan.from]->stack.close_flow(now_ns_, flow.at_sender, Status::cancelled);
    touch(flow.plan.from);
  } else if (id < sampler_) {
    apply(plan_.changes[id - changes_at_]);
  } else if (id == sampler_) {
    sample();
    agenda_.set(now_ns_ + plan_.trace_ns, sampler_);
  } else {
    begin_measuring();
  }
}

void Arena::apply(const PathChange& change) {
  for (const u32 base : {forward_, back_}) {
    Link& link = links_[base + change.path];
    if (change.up >= 0) link.set_up(change.up != 0);
    if (change.delay_ns >= 0) link.set_delay(change.delay_ns);
    if (base == back_) break;
    if (change.loss >= 0) link.set_loss(change.loss);
    if (change.bytes_per_s >= 0) link.set_rate(now_ns_, change.bytes_per_s);
    agenda_.set(link.next_ns(), links_at_ + base + change.path);
  }
}

void Arena::post(Flow& flow) {
  if (!flow.started || flow.stopped) return;
  Host& to = *hosts_[flow.plan.to];
  Host& from = *hosts_[flow.plan.from];
  while (flow.first < flow.posted && flow.at(flow.first).sent && flow.at(flow.first).placed) ++flow.first;
  for (; flow.posted_receives - flow.first < 2 * u64{flow.plan.ahead} && flow.planned(flow.posted_receives);
       ++flow.posted_receives) {
    Message& message = flow.at(flow.posted_receives);
    message.sent = message.placed = false;
    message.ticket.agreed_bytes.store(-1);
    message.ticket.stripes_placed.store(0);
    message.ticket.message.store(flow.posted_receives);
    const Status status =
        to.stack.post_receive(now_ns_, flow.at_receiver,
                              {flow.posted_receives, nowhere, flow.plan.message_bytes, 0, &message.ticket, nullptr});
    if (status != Status::ok) return violate("setup", "a receive could not be posted");
    touch(flow.plan.to);
  }
  for (; flow.posted - flow.first < flow.plan.ahead && flow.planned(flow.posted); ++flow.posted) {
    Message& message = flow.at(flow.posted);
    message.posted_ns = now_ns_;
    const Status status = from.stack.post_send(now_ns_, flow.at_sender,
                                               {flow.posted, nowhere, flow.plan.message_bytes, 0, &message, nullptr});
    if (status != Status::ok) return violate("setup", "a send could not be posted");
    touch(flow.plan.from);
  }
}

void Arena::pump(u32 host) {
  core::Stack& stack = hosts_[host]->stack;
  if (stack.poll_timeout() <= now_ns_) stack.on_timer(now_ns_);
  // The loop is bounded, so that a stack which always has something to send is reported instead of hanging the run.
  for (int bursts = 0; stack.poll_transmit(now_ns_, burst_.get()); ++bursts) {
    if (bursts == 1'000'000) return violate("P-2", "a stack sends without end at one instant");
    check_burst(host, *burst_);
    send_out(host, *burst_);
  }
  drain_events(host);
  check_host(host);
  agenda_.set(std::max(stack.poll_timeout(), now_ns_ + 1), host);
}

void Arena::drain_events(u32 host) {
  core::Event event;
  Host& here = *hosts_[host];
  while (here.stack.poll_event(&event)) {
    switch (event.kind) {
      case core::Event::Kind::send_done:
        Message::of(event.cookie).sent = true;
        // Further messages are posted by an event of the agenda and not at once, because posting affects the other
        // host, too.
        agenda_.set(now_ns_, starts_at_ + Message::of(event.cookie).flow);
        break;
      case core::Event::Kind::stripe_placed:
        on_placed(Message::of(event.cookie));
        break;
      case core::Event::Kind::policy_failed:
        ++report_.policies_failed;
        if (report_.policy_failure.empty()) {
          const auto family = static_cast<policy::Family>(event.value);
          const core::PolicyFailure& failure = here.stack.shared().failure_of(family);
          report_.policy_failure = policy::failure_text(family, failure.name, failure.hook);
        }
        break;
      case core::Event::Kind::flow_failed:
        if (!flows_[here.flows[event.flow]]->stopped) {
          violate("P-2", std::string("a flow failed: ") + status_text(event.status));
        }
        break;
      case core::Event::Kind::peer_dead:
        violate("P-2", std::string("a peer was declared dead: ") + status_text(event.status));
        break;
      default:
        break;
    }
  }
}

void Arena::on_placed(Message& message) {
  Flow& flow = *flows_[message.flow];
  const i64 took_ns = now_ns_ - message.posted_ns;
  message.placed = true;
  flow.times_ns.push_back(took_ns);
  mix(static_cast<u64>(took_ns));
  ++flow.received;
  if (flow.received == flow.plan.messages && !flow.stopped) {
    flow.finished_ns = now_ns_;
    --unfinished_;
  }
  agenda_.set(now_ns_, starts_at_ + message.flow);
}

void Arena::send_out(u32 host, const core::TxBurst& burst) {
  const Host& here = *hosts_[host];
  Packet packet;
  packet.from = host;
  packet.to = here.peers[burst.peer];
  packet.path = burst.path;
  packet.header_bytes = burst.header_bytes;
  const u32 first = !here.sends ? back_ + burst.path : is_there(plan_.sender_port) ? host : forward_ + burst.path;
  for (std::size_t i = 0; i < burst.count; ++i) {
    packet.header = headers_.copy_of(burst.header(i), burst.header_bytes);
    packet.payload_bytes = burst.payload[i].bytes;
    if (packet.header == nullptr) return violate("memory", "more than a million datagrams are in flight");
    offer(first, packet);
  }
}

void Arena::offer(u32 link, const Packet& packet) {
  if (!links_[link].offer(now_ns_, packet)) {
    headers_.give(packet);
    return;
  }
  agenda_.set(links_[link].next_ns(), links_at_ + link);
}

void Arena::drain_link(u32 link) {
  Packet packet;
  while (links_[link].poll(now_ns_, &packet)) {
    if (packet.lost) {
      headers_.give(packet);
    } else if (link < receiver_ports_) {
      offer(forward_ + packet.path, packet);
    } else if (link >= forward_ && link < back_ && is_there(plan_.receiver_port)) {
      offer(receiver_ports_ + packet.to, packet);
    } else {
      deliver(packet);
    }
  }
  agenda_.set(std::max(links_[link].next_ns(), now_ns_), links_at_ + link);
}

void Arena::deliver(const Packet& packet) {
  if (hosts_[packet.to]->sends) check_ack(packet.to, packet);
  mix(static_cast<u64>(now_ns_) ^ u64{packet.path} << 56 ^ u64{packet.to} << 40);
  wire::RxDatagram datagram;
  datagram.header = packet.header;
  datagram.header_bytes = packet.header_bytes;
  datagram.payload = nowhere;
  datagram.payload_bytes = packet.payload_bytes;
  datagram.congestion_experienced = packet.congestion_experienced;
  hosts_[packet.to]->stack.on_datagram(now_ns_, datagram);
  headers_.give(packet);
  touch(packet.to);
}

ArenaReport Arena::run() {
  while (step()) {
  }
  for (const auto& recorder : recorders_) recorder->finish();
  return report();
}

ArenaReport run_arena(const ArenaPlan& plan) { return Arena(plan).run(); }

}  // namespace weft::sim
