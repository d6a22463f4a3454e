// Builds outgoing bursts of a flow, each on one path: segments to resend first, then new data. flow_sender_ack.cc
// handles acknowledgments.
#include "native/core/flow_sender.h"

#include <algorithm>

#include "native/wire/crc32c.h"

namespace weft::core {

FlowSender::FlowSender(Shared* shared, u32 flow, const FlowConfig& flow_config, const PeerConfig& peer_config,
                       PathSet* paths) noexcept
    : shared_(shared),
      paths_(paths),
      counters_(flow_config.counters),
      ledger_(&shared->send_slabs),
      window_(shared, flow_config.window ? flow_config.window : shared->config.window, flow, peer_config.segment_bytes),
      loss_(shared, flow_config.loss ? flow_config.loss : shared->config.loss, flow, peer_config.segment_bytes),
      credit_(flow_config.speculative_bytes),
      path_key_(static_cast<i64>(Random(flow_config.remote_token).next() >> 33)),
      remote_token_(flow_config.remote_token),
      remote_flow_(flow_config.remote_flow),
      passed_(flow_config.stripe == kHomeFlow ? nullptr : flow_config.passed),
      trace_(shared, flow, flow_config.peer),
      peer_(flow_config.peer),
      train_bytes_max_(peer_config.train_bytes_max),
      eager_(eager_limits(shared->config, flow_config)),
      stripe_(flow_config.stripe),
      stripes_(flow_config.stripes),
      payload_crc_(shared->config.payload_crc || peer_config.payload_crc) {}

Status FlowSender::post(i64 now_ns, const SendPost& send) noexcept {
  if (send.bytes > kMessageBytesMax) return Status::invalid_argument;
  if (!window_.started()) {
    if (!window_.open(paths_->count())) return Status::out_of_memory;
    window_.start(window_standing(now_ns));
  }
  if (!has_outstanding()) on_progress(now_ns);
  SendMessage entry;
  entry.number = send.message;
  entry.message_bytes = send.bytes;
  entry.stripe = stripe_of(send.message, send.bytes, stripe_, stripes_);
  entry.memory = send.memory;
  entry.cookie = send.cookie;
  entry.staged = send.stage != nullptr;
  if (entry.staged) {
    entry.stage = send.stage;
    entry.stage->set_size(entry.stripe.begin, entry.stripe.bytes());
  } else {
    entry.data = send.data;
  }
  if (!queue_.post(entry)) return Status::would_block;
  trace_.message(Event::Kind::message_posted, entry);
  return Status::ok;
}

// Allocates the per-path state when the flow has something to send; release_idle() frees it (P-7).
bool FlowSender::activate() noexcept {
  if (per_path_ != nullptr) return true;
  std::unique_ptr<FlowPath[]> made(new (std::nothrow) FlowPath[paths_->count()]);
  if (made == nullptr || !loss_.open(paths_->count())) return false;
  per_path_ = std::move(made);
  measure_delivery();
  return true;
}

void FlowSender::measure_delivery() noexcept {
  if (!window_.reads_delivery()) {
    delivery_.reset();
  } else if (delivery_ == nullptr) {
    delivery_.reset(new (std::nothrow) DeliveryRate);
  }
}

void FlowSender::release_idle() noexcept {
  if (has_inflight() || has_outstanding()) return;
  per_path_.reset();
  delivery_.reset();
  loss_.close();
  adverts_.release(next_number());
  queue_.release();
  next_check_ns_ = kNever;
}

FlowSender::Blocked FlowSender::gate_new(i64 now_ns) noexcept {
  if (!queue_.has_unsent()) return Blocked::idle;
  const SendMessage& message = queue_.next();
  switch (adverts_.may_send(message.number, message.message_bytes, eager_)) {
    case AdvertLedger::Permission::wait:
      return Blocked::advert;
    case AdvertLedger::Permission::too_long:
      too_long_ = true;
      return Blocked::advert;
    case AdvertLedger::Permission::go:
      break;
  }
  const u64 next_bytes = message.next_bytes(segment_payload_bytes());
  roomless_ = !next_has_room(message, message.next_offset + next_bytes);
  if (roomless_) {
    wait_for_room(now_ns);
    return Blocked::room;
  }
  unstaged_ = !message.is_there(next_bytes);
  if (unstaged_) return Blocked::stage;
  if (credit_.is_spent() && message.stripe.bytes() != 0) return Blocked::credit;
  const Blocked gate = gate_window(now_ns, segment_payload_bytes());
  if (gate != Blocked::sent) return gate;
  return ledger_.reserve() ? Blocked::sent : Blocked::window;
}

// A resent segment needs credit like a new one. The receiver counts bytes that were reported as lost like received
// ones, so that its credit policy grants the credit to send them again.
FlowSender::Blocked FlowSender::gate_resend(i64 now_ns) noexcept {
  if (credit_.is_spent() && ledger_.at(ledger_.first_lost()).payload_bytes != 0) return Blocked::credit;
  return gate_window(now_ns, next_payload_bytes(true));
}

// The congestion window and pacing apply to resent segments as to new data, so that retransmissions do not add to
// congestion.
FlowSender::Blocked FlowSender::gate_window(i64 now_ns, i64 next_bytes) noexcept {
  if (ledger_.inflight_bytes() != 0 && ledger_.inflight_bytes() + next_bytes > window_.window_bytes()) {
    return Blocked::window;
  }
  return window_.pacer().may_send(now_ns) ? Blocked::sent : Blocked::pacing;
}

FlowSender::Blocked FlowSender::start_burst(i64 now_ns, i64 budget_bytes, bool resend, TxBurst* out,
                                            i64* limit_bytes) noexcept {
  PickRequest request;
  request.ready_bytes = static_cast<i64>(queue_.unsent_bytes());
  request.segment_bytes = next_payload_bytes(resend);
  request.is_resend = resend;
  request.flow = path_key_;
  if (resend) request.avoid_path = ledger_.at(ledger_.first_lost()).path;
  const Pick pick = paths_->pick(now_ns, request);
  if (pick.path < 0) return Blocked::paths;
  prefetch(static_cast<u8>(pick.path));
  paths_->prefetch(static_cast<u8>(pick.path));
  i64 limit = std::min({pick.burst_bytes, budget_bytes, window_.pacer().burst_bytes_max(), credit_.burst_bytes_max()});
  limit = std::min(limit, window_.window_bytes() - ledger_.inflight_bytes());
  *limit_bytes = std::max(limit, request.segment_bytes);
  out->peer = peer_;
  out->path = static_cast<u8>(pick.path);
  out->count = 0;
  out->header_bytes = wire::kDataBytes;
  out->datagram_bytes = 0;
  return Blocked::sent;
}

FlowSender::Blocked FlowSender::poll_transmit(i64 now_ns, i64 budget_bytes, TxBurst* out) noexcept {
  paced_ = false;
  const bool resend = ledger_.has_lost();
  const Blocked gate = resend ? gate_resend(now_ns) : gate_new(now_ns);
  paced_ = gate == Blocked::pacing;
  if (gate == Blocked::idle && delivery_ != nullptr) {
    delivery_->on_idle(counters_->bytes_sent, ledger_.inflight_bytes());
  }
  if (gate != Blocked::sent) return gate;
  if (!activate()) return Blocked::memory;
  i64 limit_bytes = 0;
  const Blocked started = start_burst(now_ns, budget_bytes, resend, out, &limit_bytes);
  if (started != Blocked::sent) return started;
  if (ledger_.unresolved() == 0) {  // nothing was in flight, so the sender was not stuck
    on_progress(now_ns);
    if (delivery_ != nullptr) delivery_->on_restart(now_ns, counters_->bytes_sent);
  }
  const i64 before = ledger_.inflight_bytes();
  if (resend) {
    fill_resends(now_ns, limit_bytes, out);
  } else {
    fill_new(now_ns, limit_bytes, out);
  }
  finish_burst(now_ns, out, ledger_.inflight_bytes() - before);
  return Blocked::sent;
}

// Adds a segment to a burst. False if the burst is complete: UDP_SEGMENT requires that all datagrams but the last have
// the same size.
bool FlowSender::add_segment(i64 sent_ns, u64 seq, const SendMessage& message, const Piece& piece, u32 remote_key,
                             TxBurst* out) noexcept {
  const u64 offset_bytes = piece.offset_bytes;
  const u16 payload_bytes = piece.bytes;
  wire::Common common;
  common.token = remote_token_;
  common.flow = remote_flow_;
  common.path = out->path;
  common.body_bytes = payload_bytes;
  wire::Data data;
  data.seq = seq;
  data.sent_ns = sent_ns;
  data.message = static_cast<u32>(message.number);
  data.offset_bytes = offset_bytes;
  data.message_bytes = message.message_bytes;
  data.fragment_offset = piece.fragment_offset;
  data.segment_bytes = piece.segment_bytes;
  const u8* payload = payload_bytes == 0 ? nullptr : message.at(offset_bytes);
  if (payload_crc_) {
    common.flags |= wire::kFlagPayloadCrc;
    data.payload_crc = wire::crc32c(0, payload, payload_bytes);
  }
  const std::size_t index = out->count++;
  wire::encode_data(out->headers + index * wire::kDataBytes, common, data);
  Payload& place = out->payload[index];
  place = {payload, payload_bytes, message.memory, remote_key, message.remote_address + offset_bytes};
  const u32 datagram_bytes = static_cast<u32>(wire::kDataBytes) + payload_bytes;
  if (index == 0) out->datagram_bytes = datagram_bytes;
  return datagram_bytes == out->datagram_bytes && out->count < kMaxBurstSegments &&
         (out->count + 1u) * out->datagram_bytes <= train_bytes_max_;
}

// Resends a segment that is longer than the datagrams that the paths carry now: it keeps its sequence number and is
// sent as fragments, in a burst of its own.
void FlowSender::add_fragments(i64 sent_ns, u64 seq, const SendMessage& message, u64 offset_bytes, u16 payload_bytes,
                               TxBurst* out) noexcept {
  for (u16 at = 0; at < payload_bytes;) {
    const u16 bytes = std::min(segment_payload_bytes(), static_cast<u16>(payload_bytes - at));
    static_cast<void>(add_segment(sent_ns, seq, message, {offset_bytes + at, bytes, at, payload_bytes}, 0, out));
    at = static_cast<u16>(at + bytes);
  }
}

void FlowSender::fill_resends(i64 now_ns, i64 limit_bytes, TxBurst* out) noexcept {
  FlowPath& path = flow_path(out->path);
  // P-4: a lost segment is resent on another path if possible. `same_path`: PathSet::pick() found no other path.
  const bool same_path = ledger_.at(ledger_.first_lost()).path == out->path;
  SendTrace::Burst sent(&trace_, Event::Kind::segments_resent, out->path);
  while (ledger_.has_lost()) {
    const u64 seq = ledger_.first_lost();
    const SentSegment segment = ledger_.at(seq);
    const bool is_long = segment.payload_bytes > segment_payload_bytes();
    const bool fits = out->count == 0 || (!is_long && segment.payload_bytes <= limit_bytes &&
                                          segment.payload_bytes + wire::kDataBytes <= out->datagram_bytes &&
                                          (segment.path == out->path) == same_path);
    if (!fits) return;
    const i64 sent_ns = shared_->unique_ns(now_ns);
    ledger_.on_resent(&path.order, seq, sent_ns, out->path);
    ++path.inflight_segments;
    ++counters_->segments_resent;
    ++unjudged_resends_;
    limit_bytes -= segment.payload_bytes;
    credit_.on_sent(segment.payload_bytes);
    // A resent segment carries its payload in the datagram and does not use the memory window: a late RDMA write could
    // damage the buffer, and the window may be closed.
    const SendMessage& message = queue_.at(segment.message_slot);
    sent.add(message.number);
    if (is_long) return add_fragments(sent_ns, seq, message, segment.offset_bytes, segment.payload_bytes, out);
    if (!add_segment(sent_ns, seq, message, {segment.offset_bytes, segment.payload_bytes}, 0, out)) return;
  }
}

void FlowSender::fill_new(i64 now_ns, i64 limit_bytes, TxBurst* out) noexcept {
  FlowPath& path = flow_path(out->path);
  SendTrace::Burst sent(&trace_, Event::Kind::segments_sent, out->path);
  // gate_new() checked the first segment only; the loop checks advertisement, room and window for each further one.
  for (;;) {
    SendMessage& message = queue_.next();
    const auto payload_bytes = static_cast<u16>(message.next_bytes(segment_payload_bytes()));
    if (out->count != 0 && !message.is_there(payload_bytes)) return;
    if (out->count != 0 && !next_has_room(message, message.next_offset + payload_bytes)) return;
    if (out->count != 0 && (payload_bytes > limit_bytes || payload_bytes + wire::kDataBytes > out->datagram_bytes))
      return;
    const u64 offset = message.next_offset;
    const i64 sent_ns = shared_->unique_ns(now_ns);
    const u64 seq = ledger_.append(&path.order, sent_ns, out->path, queue_.next_slot(), offset, payload_bytes);
    ++path.inflight_segments;
    limit_bytes -= payload_bytes;
    credit_.on_sent(payload_bytes);
    if (message.message_bytes > eager_.bytes) {
      advertised_sent_ = message.number + 1;
      // Bytes in a bounce buffer are never sent as an RDMA write: the NIC may retransmit late, after the segment was
      // acknowledged, and would then send whatever the ring holds at that time.
      const AdvertLedger::Receive receive = adverts_.receive_of(message.number);
      message.remote_key = message.staged ? 0 : receive.key;
      message.remote_address = receive.address;
    }
    if (offset == message.stripe.begin) trace_.message(Event::Kind::message_started, message);
    sent.add(message.number);
    const bool more = add_segment(sent_ns, seq, message, {offset, payload_bytes}, message.remote_key, out);
    queue_.on_handed_out(payload_bytes);
    if (!more || limit_bytes <= 0 || !queue_.has_unsent() || !ledger_.reserve()) return;
    const SendMessage& next = queue_.next();
    if (adverts_.may_send(next.number, next.message_bytes, eager_) != AdvertLedger::Permission::go) return;
  }
}

void FlowSender::finish_burst(i64 now_ns, TxBurst* out, i64 payload_bytes) noexcept {
  paths_->on_sent(out->path, payload_bytes, out->count);
  counters_->segments_sent += out->count;
  refresh_gauges();
  window_.pacer().on_sent(now_ns, payload_bytes);
  FlowPath& path = flow_path(out->path);
  active_paths_[out->path / 64] |= u64{1} << (out->path % 64);
  if (path.next_check_ns == kNever) path.next_check_ns = now_ns + paths_->first_check_ns(out->path);
  next_check_ns_ = std::min(next_check_ns_, path.next_check_ns);
  if (!window_.hears_sends()) return;
  WindowFacts facts = window_facts(now_ns, out->path);
  facts.sent_bytes = payload_bytes;
  facts.sent_segments = out->count;
  window_.on_send(facts);
}

i64 FlowSender::stuck_since_ns() noexcept {
  if (ledger_.unresolved() != 0) return progress_ns_;
  if (!starved()) return kNever;
  const SendMessage& next = queue_.next();
  const bool may_go = adverts_.may_send(next.number, next.message_bytes, eager_) == AdvertLedger::Permission::go;
  return may_go && !roomless_ && !unstaged_ ? progress_ns_ : kNever;
}

bool FlowSender::poll_demand(i64 now_ns, wire::Demand* demand) noexcept {
  if (!credit_.in_force() || queue_.posted_bytes() == 0) return false;
  const u64 wanted_bytes = queue_.posted_bytes() + lost_bytes_;
  if (!credit_.take_request(now_ns, wanted_bytes, starved(), shared_->config)) return false;
  *demand = {wanted_bytes, lost_bytes_};
  return true;
}

void FlowSender::abandon() noexcept {
  for (u64 seq = ledger_.cumulative_seq(); seq < ledger_.next_seq(); ++seq) {
    SentSegment& segment = ledger_.at(seq);
    if (segment.state == SentSegment::in_flight) paths_->on_gone(segment.path, segment.payload_bytes);
    ledger_.on_acked(&flow_path(segment.path).order, seq);
  }
  ledger_.advance();
  active_paths_.fill(0);
  next_check_ns_ = room_ns_ = kNever;
  credit_.end();
  paced_ = blockless_ = roomless_ = false;
  queue_ = SendQueue();
}

}  // namespace weft::core
