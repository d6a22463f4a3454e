// Handles a host's packets, the timers of its stack, free ports and starting transfers, in order of time. Hosts affect
// each other only by packets.
#include "native/sim/fabric/fabric_host.h"

#include <algorithm>
#include <cstring>

#include "native/policy/loader.h"
#include "native/sim/fabric/fabric_shard.h"

namespace weft::sim {
namespace {

core::StackConfig stack_config(const FabricPlan& plan, i64 link_bytes_per_s, u32 host) {
  core::StackConfig config;
  config.seed = core::Random(plan.seed ^ (u64{1} << 40) ^ u64{host} * 0x9E3779B97F4A7C15u).next();
  config.window_bytes_max = plan.window_bytes_max;
  config.rto_ns_min = plan.rto_ns_min;
  config.rto_ns_max = plan.rto_ns_max;
  config.peer_silence_ns = plan.peer_silence_ns;
  config.link_bytes_per_s = plan.link_bytes_per_s != 0 ? plan.link_bytes_per_s : link_bytes_per_s;
  config.ack_bytes = static_cast<u64>(plan.ack_bytes);
  config.ack_delay_ns = plan.ack_delay_ns;
  config.place_payload = false;
  // If senders know every receive from the start, nothing is advertised, and every message counts as short enough to be
  // eager.
  if (plan.receives_ready) {
    config.eager_bytes = core::kMessageBytesMax;
    config.eager_slots = u64{1} << 40;
  }
  config.window = plan.window;
  config.path = plan.path;
  config.loss = plan.loss;
  config.credit = plan.credit;
  return config;
}

}  // namespace

FabricHost::FabricHost(const FabricPlan& plan, i64 link_bytes_per_s, u32 index)
    : stack_(stack_config(plan, link_bytes_per_s, index)), index_(index) {}

void FabricHost::add_peer(u32 at, u32 host) {
  peers_.resize(std::max<std::size_t>(peers_.size(), at + 1u));
  peers_[at] = host;
}

void FabricHost::add_flow(u32 at, u32 connection) {
  connections_.resize(std::max<std::size_t>(connections_.size(), at + 1u), core::kNone);
  connections_[at] = connection;
}

void FabricHost::begin(std::span<FabricPort> ports) noexcept {
  ports_ = ports;
  if (stack_.poll_timeout() != core::kNever || stack_.wants_to_send()) self_ps_ = 0;
}

void FabricHost::add_transfer(u32 transfer, i64 start_ns) { schedule(transfer, start_ns * 1000); }

void FabricHost::schedule(u32 transfer, i64 at_ps) {
  starts_.push_back({at_ps, transfer});
  std::push_heap(starts_.begin(), starts_.end(), later);
  self_ps_ = std::min(self_ps_, at_ps);
}

void FabricHost::handle(FabricShared* shared, const FabricDue* dues, std::size_t count, i64 wake_ps, i64 end_ps) {
  std::size_t next = 0;
  // The loop is bounded, so that a host that stays busy at one instant for ever is reported instead of hanging the run.
  for (i64 turns = 0;; ++turns) {
    const i64 due_ps = next < count ? dues[next].at_ps : core::kNever;
    const i64 now_ps = std::min({due_ps, self_ps_, wake_ps});
    if (now_ps >= end_ps) break;
    if (now_ps == wake_ps) wake_ps = core::kNever;
    if (turns == 10'000'000) {
      if (shared->failure.empty())
        shared->failure = "P-2: host" + std::to_string(index_) + " stays busy at one instant without end";
      self_ps_ = core::kNever;
      break;
    }
    for (; next < count && dues[next].at_ps == now_ps; ++next) {
      if (dues[next].is_packet()) {
        deliver(shared, dues[next].packet, now_ps);
      } else {
        handle_special(shared, dues[next]);
      }
    }
    pump(shared, now_ps);
    if (trace_ != nullptr) trace_->look_at_paths(now_ps / 1000);
  }
  for (FabricPort& port : ports_) {
    port.advance(end_ps - 1, shared->sink);
    // Each packet still queued in a port must be sent in the time window in which the port becomes free for it, so the
    // host is woken for them even if its stack has nothing more to send.
    self_ps_ = std::min(self_ps_, port.next_ps());
  }
}

void FabricHost::deliver(FabricShared* shared, FabricPacket* packet, i64 now_ps) {
  mix(static_cast<u64>(now_ps) ^ u64{packet->from} << 44 ^ u64{packet->path} << 36 ^ packet->payload_bytes);
  if (shared->checks != nullptr) shared->checks->on_delivered(*packet);
  wire::RxDatagram datagram;
  datagram.header = packet->header();
  datagram.header_bytes = packet->header_bytes;
  datagram.payload = packet->payload;
  datagram.payload_bytes = packet->payload_bytes;
  datagram.congestion_experienced = packet->marked;
  if (packet->trimmed) {
    datagram.body = wire::RxDatagram::Body::trimmed;
    datagram.last_hop = packet->last_hop;
  }
  datagram.hops = packet->hops;
  stack_.on_datagram(now_ns_of(now_ps), datagram);
  if (packet->hops != nullptr && packet->data && !packet->trimmed)
    shared->telemetry->on_segment(packet, now_ns_of(now_ps));
  shared->packets->give(packet);
}

// Whether to ask the stack for data now. A port must be free and, if there are several, no port may queue more than
// burst_bytes_max, so that policies decide shortly before the data is sent. Control packets do not wait.
bool FabricHost::may_send_data(FabricShared* shared, i64 now_ps) {
  if (ports_.size() == 1) {
    FabricPort& only = ports_.front();
    if (only.busy(now_ps)) return false;
    only.advance(now_ps, shared->sink);
    return !only.waits() && !only.busy(now_ps);
  }
  bool some_free = false;
  for (FabricPort& port : ports_) {
    port.advance(now_ps, shared->sink);
    if (port.queue_bytes(now_ps) > shared->plan->burst_bytes_max) return false;
    some_free = some_free || (!port.waits() && !port.busy(now_ps));
  }
  return some_free;
}

i64 FabricHost::idle_ps(i64 now_ps) const noexcept {
  i64 earliest_ps = core::kNever;
  for (const FabricPort& port : ports_) {
    const i64 idle_ps = port.idle_ps();
    if (idle_ps > now_ps) earliest_ps = std::min(earliest_ps, idle_ps);
  }
  return earliest_ps;
}

void FabricHost::send(FabricShared* shared, i64 now_ps) {
  const i64 now_ns = now_ns_of(now_ps);
  data_waits_ = false;
  for (int round = 0; round < 1'000'000; ++round) {
    if (stack_.has_control() && stack_.poll_control(now_ns, shared->burst)) {
      send_out(shared, now_ps);
      continue;
    }
    if (!stack_.wants_to_send()) break;
    data_waits_ = !may_send_data(shared, now_ps);
    if (data_waits_) break;
    if (stack_.poll_data(now_ns, shared->burst)) {
      send_out(shared, now_ps);
    } else if (!stack_.has_control()) {  // a flow without credit requests some
      break;
    }
  }
}

void FabricHost::pump(FabricShared* shared, i64 now_ps) {
  const i64 now_ns = now_ns_of(now_ps);
  if (!starts_.empty() && starts_.front().at_ps <= now_ps) begin_due(shared, now_ps);
  if (stack_.poll_timeout() <= now_ns) stack_.on_timer(now_ns);
  send(shared, now_ps);
  // Handling events may cause more sending: for example, a posted receive must be advertised to its sender.
  while (stack_.has_events()) {
    drain_events(shared, now_ps);
    send(shared, now_ps);
  }
  self_ps_ = starts_.empty() ? core::kNever : std::max(starts_.front().at_ps, now_ps + 1);
  const i64 timeout_ns = stack_.poll_timeout();
  if (timeout_ns != core::kNever)
    self_ps_ = std::min(self_ps_, std::max((timeout_ns - kBeginNs) * 1000, now_ps + 1000));
  if (data_waits_ && stack_.wants_to_send()) self_ps_ = std::min(self_ps_, idle_ps(now_ps));
}

void FabricHost::send_out(FabricShared* shared, i64 now_ps) {
  const core::TxBurst& burst = *shared->burst;
  const u32 to = peers_[burst.peer];
  if (shared->checks != nullptr) shared->checks->on_burst(index_, stack_, to, burst);
  const u8 taken = shared->net->taken(index_, to, burst.path, now_ps);
  const u32 hash = shared->net->hash_of(index_, to, taken);
  const u32 port = shared->net->host_port(index_, taken);
  for (std::size_t i = 0; i < burst.count; ++i) {
    FabricPacket* packet = shared->packets->take();
    const u8* header = burst.header(i);
    shared->packets->set_header(packet, header, burst.header_bytes);
    packet->payload = burst.payload[i].data;
    packet->from = index_;
    packet->to = to;
    packet->hash = hash;
    packet->payload_bytes = burst.payload[i].bytes;
    packet->path = burst.path;
    packet->data = header[3] == static_cast<u8>(wire::Type::data);
    packet->first = !packet->data;
    packet->marked = packet->trimmed = packet->last_hop = packet->pause = packet->resume = false;
    if (packet->data) ++shared->data_packets;
    if (shared->telemetry != nullptr) shared->telemetry->on_sent(packet, shared->packets);
    shared->net->ports[port].offer(now_ps, packet, shared->sink);
  }
}

void FabricHost::fail(FabricShared* shared, const char* what, Status status) {
  if (!shared->failure.empty()) return;
  shared->failure = "P-2: host" + std::to_string(index_) + ": " + what + ": " + status_text(status);
}

void FabricHost::drain_events(FabricShared* shared, i64 now_ps) {
  core::Event event;
  while (stack_.poll_event(&event)) {
    switch (event.kind) {
      case core::Event::Kind::send_done:
        on_sent(shared, static_cast<u32>(reinterpret_cast<std::uintptr_t>(event.cookie) - 1), now_ps);
        break;
      case core::Event::Kind::stripe_placed:
        on_placed(shared, FabricReceive::of(event.cookie), now_ps);
        break;
      case core::Event::Kind::policy_failed:
        ++shared->policies_failed;
        if (shared->policy_failure.empty()) {
          const auto family = static_cast<policy::Family>(event.value);
          const core::PolicyFailure& failure = stack_.shared().failure_of(family);
          shared->policy_failure = policy::failure_text(family, failure.name, failure.hook);
        }
        break;
      case core::Event::Kind::flow_failed:
        fail(shared, "a flow failed", event.status);
        break;
      case core::Event::Kind::peer_dead:
        fail(shared, "a peer was declared dead", event.status);
        break;
      case core::Event::Kind::path_down:
      case core::Event::Kind::path_up:
        if (shared->checks != nullptr) {
          const bool usable = event.kind == core::Event::Kind::path_up;
          shared->checks->on_path(index_, event.peer, event.path, usable, now_ns_of(now_ps));
        }
        break;
      default:
        break;
    }
  }
}

void FabricHost::on_sent(FabricShared* shared, u32 transfer, i64 now_ps) {
  FabricWork& work = *shared->work;
  work.transfers[transfer].sent_ns = now_ps / 1000;
  const u32 connection = work.connection_of[transfer];
  const FabricConnection& at = work.connections[connection];
  ++work.through[connection];
  u32& oldest = work.oldest[connection];
  while (oldest < at.count && work.transfers[work.order[at.first + oldest]].sent_ns >= 0) ++oldest;
  ++shared->sent;
  if (shared->checks != nullptr) shared->checks->on_sent(transfer);
  post(shared, connection, now_ps);
  on_happened(shared, transfer, now_ps);
}

void FabricHost::on_placed(FabricShared* shared, FabricReceive& receive, i64 now_ps) {
  FabricWork& work = *shared->work;
  const u32 transfer = receive.transfer;
  receive.waits = false;
  work.transfers[transfer].received_ns = now_ps / 1000;
  mix(static_cast<u64>(now_ps) * 31 + transfer);
  const u32 connection = work.connection_of[transfer];
  ++work.placed[connection];
  ++shared->received;
  if (shared->checks != nullptr) shared->checks->on_placed(transfer);
  post_receives(shared, connection, now_ps);
  on_happened(shared, transfer, now_ps);
}

// Called when a transfer is complete at this host. This host then starts the dependent transfers that it sends itself.
void FabricHost::on_happened(FabricShared* shared, u32 transfer, i64 now_ps) {
  FabricWork& work = *shared->work;
  for (u32 i = work.next_begin[transfer]; i < work.next_begin[transfer + 1u]; ++i) {
    const u32 after = work.next[i].after;
    if (shared->plan->transfers[after].from != index_) continue;
    work.may_start_ns[after] = std::max(work.may_start_ns[after], now_ps / 1000 + work.next[i].delay_ns);
    if (--work.waits_for[after] == 0) schedule(after, std::max(work.may_start_ns[after] * 1000, now_ps));
  }
}

// Finishes a local event (a transfer from this host to itself), which starts and ends at the same time.
void FabricHost::on_local(FabricShared* shared, u32 transfer, i64 now_ps) {
  TransferReport& report = shared->work->transfers[transfer];
  report.posted_ns = report.sent_ns = report.received_ns = now_ps / 1000;
  mix(static_cast<u64>(now_ps) * 31 + transfer);
  ++shared->sent;
  ++shared->received;
  on_happened(shared, transfer, now_ps);
}

void FabricHost::begin_due(FabricShared* shared, i64 now_ps) {
  while (!starts_.empty() && starts_.front().at_ps <= now_ps) {
    const u32 transfer = starts_.front().transfer;
    std::pop_heap(starts_.begin(), starts_.end(), later);
    starts_.pop_back();
    shared->work->transfers[transfer].ready_ns = now_ps / 1000;
    if (shared->plan->transfers[transfer].is_local()) {
      on_local(shared, transfer, now_ps);
    } else {
      ++shared->begun;
      post(shared, shared->work->connection_of[transfer], now_ps);
    }
  }
}

// Posts sends in the connection's order: a transfer whose start time has come waits for those before it. Posts only
// messages less than 2 * ahead after the oldest unfinished one, because receives are posted only that far.
void FabricHost::post(FabricShared* shared, u32 connection, i64 now_ps) {
  FabricWork& work = *shared->work;
  const FabricConnection& at = work.connections[connection];
  const u32 ahead = shared->plan->ahead, end = std::min(at.count, work.oldest[connection] + 2 * ahead);
  u32& posted = work.posted[connection];
  for (; posted < end && posted - work.through[connection] < ahead; ++posted) {
    const u32 transfer = work.order[at.first + posted];
    if (work.transfers[transfer].ready_ns < 0) return;
    // A fake address, which is never accessed; it encodes transfer and offset.
    const u8* data = FabricChecks::address_of(transfer);
    void* cookie = reinterpret_cast<void*>(std::uintptr_t{transfer} + 1);
    const u64 bytes = shared->plan->transfers[transfer].bytes;
    const Status status = stack_.post_send(now_ns_of(now_ps), at.at_sender, {posted, data, bytes, 0, cookie, nullptr});
    if (status != Status::ok) return fail(shared, "a send could not be posted", status);
    work.transfers[transfer].posted_ns = now_ps / 1000;
  }
}

void FabricHost::post_receives(FabricShared* shared, u32 connection, i64 now_ps) {
  FabricWork& work = *shared->work;
  const FabricConnection& at = work.connections[connection];
  const u32 room = 2 * shared->plan->ahead;
  u32& posted = work.posted_receives[connection];
  for (; posted < at.count && posted - work.placed[connection] < room; ++posted) {
    FabricReceive& receive = work.receives[connection][posted % room];
    if (receive.waits) return;  // an earlier message still uses this entry of the ring of receives
    receive.waits = true;
    receive.transfer = work.order[at.first + posted];
    receive.ticket.agreed_bytes.store(-1, std::memory_order_relaxed);
    receive.ticket.stripes_placed.store(0, std::memory_order_relaxed);
    receive.ticket.message.store(posted, std::memory_order_relaxed);
    u8* into = const_cast<u8*>(FabricChecks::address_of(receive.transfer));
    const u64 bytes = shared->plan->transfers[receive.transfer].bytes;
    const Status status =
        stack_.post_receive(now_ns_of(now_ps), at.at_receiver, {posted, into, bytes, 0, &receive.ticket, nullptr});
    if (status != Status::ok) return fail(shared, "a receive could not be posted", status);
  }
}

}  // namespace weft::sim
