// The simulated caller: it posts requests, handles completions, overwrites returned buffers and compares contents. The
// invariants that are checked after each step and at the end are in rig_checks.cc.
#include "tests/native/rig/rig.h"

#include <algorithm>
#include <cstring>

#include "tests/native/rig/rig_state.h"

namespace weft::sim {
namespace {

constexpr double kHeaderLost = 0.02;

}  // namespace

Rig::Rig(const Schedule& schedule)
    : schedule_(schedule),
      random_(schedule.seed * 2 + 1),
      link_(schedule.seed * 2, schedule.faults, schedule.outages, schedule.limits),
      burst_(std::make_unique<core::TxBurst>()) {
  for (int end = 0; end < 2; ++end) sides_[end] = std::make_unique<Side>(stack_config(schedule, end));
  connect();
  plan_messages();
}

Rig::~Rig() = default;

void Rig::connect() {
  u32 peer_index[2], flow_index[2][kStripesMax];
  for (int end = 0; end < 2; ++end) {
    static_cast<void>(sides_[end]->stack.reserve_peer(&peer_index[end]));
    for (u32 i = 0; i < schedule_.stripes; ++i) static_cast<void>(sides_[end]->stack.reserve_flow(&flow_index[end][i]));
  }
  for (int end = 0; end < 2; ++end) {
    core::PeerConfig peer;
    peer.remote_peer = peer_index[1 - end];
    peer.local_token = token(schedule_, end, 99);
    peer.remote_token = token(schedule_, 1 - end, 99);
    peer.path_count = schedule_.paths;
    peer.segment_bytes = schedule_.segment_bytes;
    peer.train_bytes_max = std::max<u32>(65'000, schedule_.segment_bytes);
    peer.port_buffer_bytes = schedule_.port_buffer_bytes;
    peer.search_size = schedule_.search_size;
    peer.open_bytes = end == 1 ? schedule_.open_bytes : -1;
    Side& side = *sides_[end];
    side.peer = peer_index[end];
    bool ok = side.stack.open_peer(now_ns_, side.peer, peer) == Status::ok;
    for (u8 i = 0; i < schedule_.stripes; ++i) {
      core::FlowConfig flow;
      flow.peer = side.peer;
      flow.remote_flow = flow_index[1 - end][i];
      flow.local_token = token(schedule_, end, i);
      flow.remote_token = token(schedule_, 1 - end, i);
      flow.stripe = i;
      flow.stripes = schedule_.stripes;
      ok = ok && side.stack.open_flow(now_ns_, flow_index[end][i], flow) == Status::ok;
      side.flows.push_back(flow_index[end][i]);
    }
    if (!ok) violate("setup", "a peer or flow could not be opened");
  }
}

void Rig::plan_messages() {
  for (int end = 0; end < 2; ++end) {
    if (end == 1 && !schedule_.both_ways) continue;
    i64 send_ns = now_ns_, receive_ns = now_ns_;
    for (u32 number = 0; number < schedule_.messages; ++number) {
      auto transfer = std::make_unique<Transfer>();
      transfer->number = number;
      transfer->from = end;
      const bool too_long = schedule_.send_too_long && end == 0 && number + 1 == schedule_.messages;
      transfer->bytes = draw_bytes(schedule_, random_) + (too_long ? 1 : 0);
      const u64 slack = random_.uniform() < 0.5 ? random_.next() % 5000 : 0;
      transfer->capacity_bytes = too_long ? transfer->bytes - 1 : transfer->bytes + slack;
      const auto gap = static_cast<u64>(schedule_.post_gap_ns_max) + 1;
      transfer->send_ns = send_ns += static_cast<i64>(random_.next() % gap);
      transfer->receive_ns = receive_ns += static_cast<i64>(random_.next() % gap);
      transfer->seed = random_.next();
      const auto staged = [&](double fraction) { return fraction > 0.0 && random_.uniform() < fraction; };
      if (staged(schedule_.staged_sends))
        transfer->outgoing = std::make_unique<Staging>(schedule_.stripes, kRingBytes, kPieceBytes, 0);
      if (staged(schedule_.staged_receives))
        transfer->incoming = std::make_unique<Staging>(schedule_.stripes, kRingBytes, kPieceBytes, kRingBytes);
      unposted_ += 2;
      sides_[end]->sends.push_back(transfer.get());
      sides_[1 - end]->receives.push_back(transfer.get());
      transfers_of(end).push_back(std::move(transfer));
    }
  }
}

std::vector<std::unique_ptr<Rig::Transfer>>& Rig::transfers_of(int end) { return sides_[end]->owned; }

bool Rig::post_send(int end, Transfer& transfer) {
  Side& side = *sides_[end];
  if (transfer.send_buffer.empty()) {
    transfer.send_buffer.resize(transfer.bytes + 1);
    fill(transfer.send_buffer.data(), transfer.bytes, transfer.seed);
  }
  while (transfer.next_send_stripe < schedule_.stripes) {
    const u32 i = transfer.next_send_stripe;
    if (core::takes_part(transfer.number, transfer.bytes, i, schedule_.stripes)) {
      core::Stage* const stage = transfer.outgoing != nullptr ? transfer.outgoing->stage(i) : nullptr;
      u8* const buffer = stage != nullptr ? nullptr : transfer.send_buffer.data();
      const Status status =
          side.stack.post_send(now_ns_, side.flows[i],
                               {transfer.number, buffer, transfer.bytes, stage != nullptr ? 0u : 1u, &transfer, stage});
      if (status == Status::would_block) return false;
      if (status != Status::ok) side.failed = true;
    }
    ++transfer.next_send_stripe;
  }
  return true;
}

bool Rig::post_receive(int end, Transfer& transfer) {
  Side& side = *sides_[end];
  if (transfer.receive_buffer.empty()) {
    transfer.receive_buffer.assign(transfer.capacity_bytes + kGuardBytes, kUntouched);
    transfer.ticket.message.store(transfer.number);
  }
  while (transfer.next_receive_stripe < schedule_.stripes) {
    const u32 i = transfer.next_receive_stripe;
    if (!core::takes_part(transfer.number, transfer.capacity_bytes, i, schedule_.stripes)) {
      ++transfer.next_receive_stripe;
      continue;
    }
    core::Stage* const stage = transfer.incoming != nullptr ? transfer.incoming->stage(i) : nullptr;
    u8* const buffer = stage != nullptr ? nullptr : transfer.receive_buffer.data();
    const bool window = schedule_.windows && stage == nullptr && transfer.capacity_bytes > schedule_.eager_bytes;
    const u32 key = window ? side.windows.open(buffer, transfer.capacity_bytes) : 0;
    const Status status = side.stack.post_receive(
        now_ns_, side.flows[i], {transfer.number, buffer, transfer.capacity_bytes, key, &transfer.ticket, stage});
    if (status != Status::ok) side.windows.close(key);
    if (status == Status::would_block) return false;
    if (status != Status::ok) side.failed = true;
    ++transfer.next_receive_stripe;
  }
  return true;
}

void Rig::post_due(int end) {
  Side& side = *sides_[end];
  while (side.next_send < side.sends.size() && side.sends[side.next_send]->send_ns <= now_ns_) {
    Transfer& transfer = *side.sends[side.next_send];
    if (!side.failed && !post_send(end, transfer)) break;
    --unposted_;
    ++outstanding_;
    ++side.next_send;
    if (side.failed) on_flow_failed(end, Status::connection_closed);
  }
  while (side.next_receive < side.receives.size() && side.receives[side.next_receive]->receive_ns <= now_ns_) {
    Transfer& transfer = *side.receives[side.next_receive];
    if (!side.failed && !post_receive(end, transfer)) break;
    --unposted_;
    ++outstanding_;
    ++side.next_receive;
    if (side.failed) on_flow_failed(end, Status::connection_closed);
  }
}

// Lets the copiers of bounce buffers copy, but at random, in about half of the cases in which they could.
void Rig::stage_due(int end) {
  Side& side = *sides_[end];
  if (side.failed) return;
  for (std::size_t k = 0; schedule_.staged_sends > 0.0 && k < side.next_send; ++k) {
    Transfer& transfer = *side.sends[k];
    for (u32 i = 0; transfer.outgoing != nullptr && !transfer.send_finished && i < schedule_.stripes; ++i) {
      if (!transfer.outgoing->may_fill(i) || random_.uniform() < 0.5) continue;
      static_cast<void>(transfer.outgoing->fill(i, transfer.send_buffer.data()));
      side.stack.on_staged(side.flows[i]);
    }
  }
  for (std::size_t k = 0; schedule_.staged_receives > 0.0 && k < side.next_receive; ++k) {
    Transfer& transfer = *side.receives[k];
    for (u32 i = 0; transfer.incoming != nullptr && !transfer.receive_finished && i < schedule_.stripes; ++i) {
      if (!transfer.incoming->may_empty(i) || random_.uniform() < 0.5) continue;
      static_cast<void>(transfer.incoming->empty(i, transfer.receive_buffer.data()));
      side.stack.on_staged(side.flows[i]);
    }
  }
}

i64 Rig::next_stage_ns(int end) const noexcept {
  const Side& side = *sides_[end];
  bool any = false;
  for (std::size_t k = 0; schedule_.staged_sends > 0.0 && k < side.next_send; ++k) {
    const Transfer& transfer = *side.sends[k];
    for (u32 i = 0; transfer.outgoing != nullptr && !transfer.send_finished && i < schedule_.stripes; ++i)
      any = any || transfer.outgoing->may_fill(i);
  }
  for (std::size_t k = 0; schedule_.staged_receives > 0.0 && k < side.next_receive; ++k) {
    const Transfer& transfer = *side.receives[k];
    for (u32 i = 0; transfer.incoming != nullptr && !transfer.receive_finished && i < schedule_.stripes; ++i)
      any = any || transfer.incoming->may_empty(i);
  }
  return any && !side.failed ? now_ns_ + kStageNs : core::kNever;
}

void Rig::on_send_done(int end, Transfer& transfer) {
  if (transfer.send_finished) return violate("P-3", "a send completed twice");
  if (++transfer.stripes_sent != core::part_count(transfer.number, transfer.bytes, schedule_.stripes)) return;
  transfer.send_finished = true;
  --outstanding_;
  ++report_.completed;
  mix(transfer.number * 4 + static_cast<u64>(end));
  // The caller owns the buffer again. It is overwritten, so that a retransmission from it would carry wrong bytes.
  std::memset(transfer.send_buffer.data(), kReused, transfer.send_buffer.size());
  if (transfer.outgoing != nullptr) transfer.outgoing->spoil(kReused);
  const bool visible = transfer.next_receive_stripe == schedule_.stripes && !transfer.receive_finished &&
                       transfer.bytes <= transfer.capacity_bytes && transfer.incoming == nullptr;
  if (visible && !matches(transfer.receive_buffer.data(), transfer.bytes, transfer.seed)) {
    violate("P-3", "a send completed before the peer held its bytes");
  }
}

void Rig::on_received(int end, Transfer& transfer, u64 message_bytes) {
  if (transfer.receive_finished) return violate("P-3", "a receive completed twice");
  if (!core::on_stripe_placed(transfer.ticket, message_bytes, schedule_.stripes)) return;
  transfer.receive_finished = true;
  --outstanding_;
  ++report_.completed;
  ++sides_[end]->received;
  mix(transfer.number * 4 + 2 + static_cast<u64>(end));
  if (message_bytes > transfer.capacity_bytes)
    return violate("P-1", "a receive completed with more bytes than its capacity");
  if (message_bytes != transfer.bytes) {
    ++report_.corrupt_messages;
    return violate("P-3", "a receive reported another message size than the sender sent");
  }
  for (u32 i = 0; transfer.incoming != nullptr && i < schedule_.stripes; ++i) {
    static_cast<void>(transfer.incoming->empty(i, transfer.receive_buffer.data()));
  }
  if (!matches(transfer.receive_buffer.data(), transfer.bytes, transfer.seed)) {
    ++report_.corrupt_messages;
    return violate("P-1", "a completed receive holds wrong bytes");
  }
  for (u64 i = transfer.bytes; i < transfer.receive_buffer.size(); ++i) {
    if (transfer.receive_buffer[i] != kUntouched) return violate("P-1", "bytes beyond the message were written");
  }
  std::memset(transfer.receive_buffer.data(), kReused, transfer.receive_buffer.size());
}

void Rig::fail_outstanding(int end, Status status) {
  Side& side = *sides_[end];
  side.failed = true;
  side.windows.close_all();
  // An engine returns a buffer only when no NIC reads it any more, so from now on the link must not read the buffers of
  // datagrams in flight.
  link_.settle(end);
  if (side.first_failure == Status::ok) side.first_failure = status;
  for (std::size_t i = 0; i < side.next_send; ++i) {
    if (side.sends[i]->send_finished) continue;
    side.sends[i]->send_finished = true;
    std::fill(side.sends[i]->send_buffer.begin(), side.sends[i]->send_buffer.end(), kReused);
    --outstanding_;
    ++report_.failed;
  }
  for (std::size_t i = 0; i < side.next_receive; ++i) {
    Transfer& transfer = *side.receives[i];
    if (transfer.receive_finished) continue;
    transfer.receive_finished = true;
    --outstanding_;
    ++report_.failed;
    // The receive has failed, so nothing may write to its buffer from here on.
    std::fill(transfer.receive_buffer.begin(), transfer.receive_buffer.end(), kReused);
  }
}

void Rig::on_flow_failed(int end, Status status) {
  Side& side = *sides_[end];
  mix(0xF000u + static_cast<u64>(status));
  for (const u32 flow : side.flows) side.stack.close_flow(now_ns_, flow, status);
  fail_outstanding(end, status);
}

// Called when the peer has closed. Messages that arrived before can still be received; but if a request waits that can
// never complete, all requests fail.
void Rig::on_peer_closed(int end, u64 held) {
  Side& side = *sides_[end];
  side.held += held;
  if (++side.flows_peer_closed != side.flows.size()) return;
  bool waits = false;
  for (std::size_t i = 0; i < side.next_send; ++i) waits = waits || !side.sends[i]->send_finished;
  for (std::size_t i = 0; i < side.next_receive; ++i) waits = waits || !side.receives[i]->receive_finished;
  if (waits || side.held == 0) on_flow_failed(end, Status::connection_closed);
}

void Rig::drain_events(int end) {
  core::Event event;
  Side& side = *sides_[end];
  while (side.stack.poll_event(&event)) {
    switch (event.kind) {
      case core::Event::Kind::send_done:
        if (!side.failed) on_send_done(end, *static_cast<Transfer*>(event.cookie));
        break;
      case core::Event::Kind::window_unused:
        side.windows.close(event.key);
        break;
      case core::Event::Kind::stripe_placed:
        if (!schedule_.windows_outlive) side.windows.close(event.key);
        if (!side.failed) {
          on_received(end, *Transfer::of(static_cast<core::ReceiveTicket*>(event.cookie)), event.value);
        }
        break;
      case core::Event::Kind::flow_failed:
        on_flow_failed(end, event.status);
        break;
      case core::Event::Kind::peer_closed:
        on_peer_closed(end, event.value);
        break;
      case core::Event::Kind::flow_closed:
        ++side.flows_closed;
        break;
      case core::Event::Kind::policy_failed:
        ++report_.policies_failed;
        break;
      case core::Event::Kind::peer_quiet:
      case core::Event::Kind::peer_released:
      case core::Event::Kind::flow_stuck:
        break;
      case core::Event::Kind::segment_size:
        ++report_.size_changes;
        break;
      case core::Event::Kind::path_down:
      case core::Event::Kind::path_up:
      case core::Event::Kind::peer_dead:
        mix(static_cast<u64>(event.kind) << 8 | event.path);
        break;
      default:  // for sinks alone
        break;
    }
  }
}

void Rig::pump(int end) {
  Side& side = *sides_[end];
  if (dead(end)) return;
  side.stack.on_timer(now_ns_);
  // The loop is bounded, so that a stack which always has something to send is reported instead of hanging the run.
  for (int bursts = 0; bursts < 100'000; ++bursts) {
    if (!side.stack.poll_transmit(now_ns_, burst_.get())) {
      drain_events(end);
      // Asks the stack for packets once more, because handling the events may have closed a flow, which sends close
      // packets.
      if (!side.stack.poll_transmit(now_ns_, burst_.get())) return drain_events(end);
    }
    check_burst(end);
    link_.send(now_ns_, end, *burst_);
  }
  violate("P-2", "a stack sends without end at one instant");
}

void Rig::close_if_due() {
  const bool early = schedule_.close_at_ns >= 0 && now_ns_ >= schedule_.close_at_ns;
  if (closed_ || !(early || finished())) return;
  closed_ = true;
  closed_ns_ = now_ns_;
  for (int end = 0; end < 2; ++end) {
    if (early && end == 1) break;  // the other end learns from the network that this end closed
    for (const u32 flow : sides_[end]->flows) sides_[end]->stack.close_flow(now_ns_, flow, Status::cancelled);
    fail_outstanding(end, Status::cancelled);
  }
}

void Rig::swap_if_due() {
  for (; next_swap_ < schedule_.swaps.size() && schedule_.swaps[next_swap_].at_ns <= now_ns_; ++next_swap_) {
    const PolicySwap& swap = schedule_.swaps[next_swap_];
    if (dead(swap.end)) continue;
    if (!sides_[swap.end]->stack.policies().set_default(now_ns_, swap.family, swap.choice, false)) {
      violate("swap", "a policy could not be replaced");
    }
  }
}

bool Rig::step() {
  const i64 next = next_ns();
  if (next == core::kNever) return false;
  now_ns_ = std::max(now_ns_ + 1, next);
  for (int end = 0; end < 2; ++end) {
    if (!dead(end)) post_due(end);
  }
  if (dead(1)) {
    // When an endpoint's process dies, so does the program in it: its outstanding and planned requests are void.
    Side& side = *sides_[1];
    const std::size_t never = side.sends.size() - side.next_send + side.receives.size() - side.next_receive;
    unposted_ -= static_cast<i64>(never);
    outstanding_ += static_cast<i64>(never);
    side.next_send = side.sends.size();
    side.next_receive = side.receives.size();
    fail_outstanding(1, Status::peer_dead);
  }
  while (auto arrival = link_.poll(now_ns_)) {
    if (dead(arrival->to)) continue;
    deliver(*arrival);
  }
  for (int end = 0; end < 2; ++end) {
    drain_events(end);
    if (!dead(end)) stage_due(end);
    pump(end);
  }
  swap_if_due();
  close_if_due();
  check_step();
  return true;
}

core::RxDatagram::Body Rig::write(const Arrival& arrival) {
  const core::Payload& source = arrival.source;
  const u8* const from = read_late(arrival) ? source.data : arrival.payload.data();
  const bool written = sides_[arrival.to]->windows.write(source.remote_key, source.remote_address, from, source.bytes);
  ++(written ? report_.writes : report_.writes_refused);
  return written ? core::RxDatagram::Body::written : core::RxDatagram::Body::missing;
}

void Rig::deliver(const Arrival& arrival) {
  // For an RDMA write, the NIC drops damaged packets.
  const bool by_window = arrival.source.remote_key != 0;
  if (by_window && arrival.corrupted) return;
  core::RxDatagram datagram;
  datagram.header = arrival.header.data();
  datagram.header_bytes = static_cast<u32>(arrival.header.size());
  datagram.payload = arrival.payload.data();
  datagram.payload_bytes = static_cast<u32>(arrival.payload.size());
  datagram.congestion_experienced = arrival.congestion_experienced;
  if (read_late(arrival) && !arrival.corrupted && arrival.source.bytes != 0) datagram.payload = arrival.source.data;
  if (by_window) {
    datagram.body = write(arrival);
    datagram.payload = nullptr;
    // The header of a segment whose payload was already written is lost at random.
    if (schedule_.faults.loss > 0 && random_.uniform() < kHeaderLost) return;
  }
  mix(static_cast<u64>(now_ns_) ^ (datagram.header_bytes * 31u + datagram.payload_bytes));
  if (!arrival.corrupted) sides_[arrival.to]->arrived_bytes += i64{datagram.header_bytes} + datagram.payload_bytes;
  sides_[arrival.to]->stack.on_datagram(now_ns_, datagram);
}

i64 Rig::next_ns() const noexcept {
  i64 next = link_.next_ns();
  for (int end = 0; end < 2; ++end) {
    if (dead(end)) continue;
    const Side& side = *sides_[end];
    next = std::min({next, side.stack.poll_timeout(), next_stage_ns(end)});
    if (side.next_send < side.sends.size())
      next = std::min(next, std::max(side.sends[side.next_send]->send_ns, now_ns_ + 50'000));
    if (side.next_receive < side.receives.size()) {
      next = std::min(next, std::max(side.receives[side.next_receive]->receive_ns, now_ns_ + 50'000));
    }
  }
  if (!closed_ && next_swap_ < schedule_.swaps.size()) next = std::min(next, schedule_.swaps[next_swap_].at_ns);
  if (!closed_ && schedule_.close_at_ns >= now_ns_) next = std::min(next, schedule_.close_at_ns);
  if (schedule_.dies_at_ns >= now_ns_) next = std::min(next, schedule_.dies_at_ns);
  return next;
}

RunReport Rig::run() {
  while (report_.violation.empty() && now_ns_ < schedule_.limit_ns && step()) {
    if (closed_ && finished() && settled()) break;
  }
  check_end();
  return report();
}

RunReport run_schedule(const Schedule& schedule) { return Rig(schedule).run(); }

}  // namespace weft::sim
