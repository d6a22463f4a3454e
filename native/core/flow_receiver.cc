// The order of the checks is the safety argument: token (stack), duplicate, placement, and only then a byte is written;
// a sequence number is marked received only when its bytes are in their place and their CRC was right. The CRC is taken
// while they are copied: a damaged segment spoils bytes that no other has brought, of a message that is not whole
// before it comes again. (What was written through a window is there already: only the window kept it out of buffers
// that are done.)
#include "native/core/flow_receiver.h"

#include <algorithm>

#include "native/wire/crc32c.h"

namespace weft::core {
namespace {

constexpr u64 kAdvertBytesMin = 440;  // 17 receives: one more than are said again; UD has 512

}  // namespace

FlowReceiver::FlowReceiver(Shared* shared, PolicyChoice choice, CreditPort* port, u32 flow,
                           const FlowConfig& flow_config, const PeerConfig& peer_config) noexcept
    : shared_(shared),
      window_(&shared->bitmaps),
      queue_(shared, eager_limits(shared->config, flow_config), flow_config.stripe, flow_config.stripes),
      acks_(peer_config.path_count, shared->config.ack_bytes, shared->config.ack_delay_ns),
      remote_token_(flow_config.remote_token),
      remote_flow_(flow_config.remote_flow),
      flow_(flow),
      peer_(flow_config.peer),
      segment_bytes_(peer_config.segment_bytes),
      path_count_(peer_config.path_count),
      ack_words_max_(static_cast<u8>(wire::ack_words_max(peer_config.segment_bytes))) {
  if (port != nullptr) static_cast<void>(set_credit(choice, port));
}

FlowReceiver::~FlowReceiver() {
  if (credit_ != nullptr) --credit_->port()->active_flows;
}

bool FlowReceiver::set_credit(PolicyChoice choice, CreditPort* port) noexcept {
  std::unique_ptr<CreditControl> made;
  if (choice) {
    made.reset(new (std::nothrow) CreditControl(shared_, port, choice, flow_, segment_bytes_));
    if (made == nullptr || !made->open()) return false;
    made->resume(std::max(credit_ == nullptr ? 0 : credit_->granted_bytes(), credited_bytes()),
                 credit_ == nullptr ? 0 : credit_->demand_bytes());
    ++port->active_flows;
  }
  if (credit_ != nullptr) {
    --credit_->port()->active_flows;
    credit_lifted_ = made == nullptr;
  }
  credit_ = std::move(made);
  if (acks_.activate()) acks_.on_due(last_path_);  // the sender must hear of it, or it waits for the old one's grants
  return true;
}

wire::Common FlowReceiver::common(u8 path) const noexcept {
  wire::Common common;
  common.token = remote_token_;
  common.flow = remote_flow_;
  common.path = path;
  return common;
}

// The acknowledgment may have been lost.
FlowReceiver::Outcome FlowReceiver::on_again(u8 path) noexcept {
  ++counters_.segments_duplicate;
  last_path_ = path;
  acks_.on_due(path);
  return Outcome::duplicate;
}

// What does not fit into one report is left to the sender's own verdict.
FlowReceiver::Outcome FlowReceiver::on_trimmed(u8 path, const wire::Data& data, bool last_hop) noexcept {
  if (window_.classify(data.seq) == ReceiveWindow::Arrival::beyond) return Outcome::refused;
  if (trims_ == nullptr) trims_.reset(new (std::nothrow) Trims);
  if (trims_ == nullptr || trims_->count == wire::kNackEntriesMax) return Outcome::missing;
  trims_->entries[trims_->count] = {data.seq, data.sent_ns};
  trims_->last_hop |= u64{last_hop} << trims_->count;
  trims_->path = last_path_ = path;
  ++trims_->count;
  return Outcome::trimmed;
}

void FlowReceiver::write_nack(TxBurst* out) noexcept {
  out->path = trims_->path;
  wire::Nack nack;
  nack.granted_bytes = granted_bytes();
  nack.last_hop = trims_->last_hop;
  nack.count = trims_->count;
  out->header_bytes = static_cast<u16>(wire::encode_nack(out->headers, common(trims_->path), nack, trims_->entries));
  out->datagram_bytes = out->header_bytes;
  trims_.reset();
}

FlowReceiver::Outcome FlowReceiver::on_data(i64 now_ns, const wire::Packet& packet,
                                            const RxDatagram& datagram) noexcept {
  const wire::Data& data = packet.data;
  const u8 path = packet.common.path;
  if (path >= path_count_) return Outcome::refused;
  const u64 message = expand32(queue_.posted(), data.message);
  const u8* payload = datagram.payload;
  if (datagram.body != RxDatagram::Body::here) {
    if (window_.classify(data.seq) == ReceiveWindow::Arrival::duplicate) return on_again(path);
    if (datagram.body == RxDatagram::Body::missing) return Outcome::missing;
    if (datagram.body == RxDatagram::Body::trimmed) return on_trimmed(path, data, datagram.last_hop);
    payload = queue_.written_at(message, data.offset_bytes, datagram.payload_bytes);
    if (payload == nullptr) return Outcome::refused;
  }
  const bool checked = (packet.common.flags & wire::kFlagPayloadCrc) != 0;
  // A segment that is not placed is told as damaged before anything else is believed of it.
  const auto damaged = [&] { return checked && wire::crc32c(0, payload, datagram.payload_bytes) != data.payload_crc; };
  switch (window_.classify(data.seq)) {
    case ReceiveWindow::Arrival::duplicate:
      return damaged() ? Outcome::bad_crc : on_again(path);
    case ReceiveWindow::Arrival::beyond:
      if (damaged()) return Outcome::bad_crc;
      ++counters_.segments_refused;
      return Outcome::refused;
    case ReceiveWindow::Arrival::fresh:
      break;
  }
  if (!acks_.activate()) return Outcome::refused;
  switch (queue_.check(message, data.offset_bytes, datagram.payload_bytes, data.message_bytes)) {
    case ReceiveQueue::Placement::too_long:
      return damaged() ? Outcome::bad_crc : Outcome::too_long;
    case ReceiveQueue::Placement::refused:
    case ReceiveQueue::Placement::no_memory:
      if (damaged()) return Outcome::bad_crc;
      ++counters_.segments_refused;
      return Outcome::refused;
    case ReceiveQueue::Placement::placed:
      break;
  }
  if (!checked) {
    queue_.write(message, data.offset_bytes, payload, datagram.payload_bytes);
  } else if (queue_.write_checked(message, data.offset_bytes, payload, datagram.payload_bytes) != data.payload_crc) {
    return Outcome::bad_crc;
  }
  if (window_.on_arrival(data.seq) != ReceiveWindow::Arrival::fresh) return Outcome::refused;  // no bitmap to be had
  const bool whole = queue_.place(flow_, message, data.offset_bytes, datagram.payload_bytes);
  // Nobody sends such a message without having its advertisement.
  if (data.message_bytes > queue_.eager().bytes) advertiser_.on_confirm(message + 1);
  ++counters_.segments_received;
  counters_.bytes_received += datagram.payload_bytes;
  last_path_ = path;
  acks_.on_segment(now_ns, path, data.sent_ns, datagram.payload_bytes, datagram.congestion_experienced);
  if (whole) acks_.on_message_whole();
  if (credit_ != nullptr) {
    if (datagram.congestion_experienced) credit_->on_mark();
    static_cast<void>(credit_->on_demand(now_ns, 0, credited_bytes()));
  }
  return Outcome::taken;
}

Status FlowReceiver::post(i64 now_ns, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
                          Stage* stage) noexcept {
  const Status status = queue_.post(flow_, message, data, capacity_bytes, key, ticket, stage);
  if (status == Status::ok) {
    const bool urgent = capacity_bytes > queue_.eager().bytes || queue_.eager().slots < 2;
    advertiser_.on_post(now_ns, queue_.posted(), urgent, queue_.eager().slots);
  }
  return status;
}

void FlowReceiver::on_demand(i64 now_ns, u8 path, const wire::Demand& demand) noexcept {
  if ((credit_ == nullptr && !credit_lifted_) || path >= path_count_ || demand.lost_bytes > demand.demand_bytes) return;
  lost_bytes_ = std::max(lost_bytes_, demand.lost_bytes);
  // Who still asks after the limit was lifted has not heard of it.
  if (credit_ != nullptr) {
    static_cast<void>(credit_->on_demand(now_ns, demand.demand_bytes, credited_bytes()));
  }
  last_path_ = path;
  acks_.on_due(path);
}

void FlowReceiver::on_timer(i64 now_ns) noexcept {
  advertiser_.on_timer(now_ns);
  if (credit_ != nullptr && credit_->on_timer(now_ns, credited_bytes())) acks_.on_due(last_path_);
}

i64 FlowReceiver::poll_timeout() const noexcept {
  const i64 tick_ns = credit_ == nullptr ? kNever : credit_->poll_timeout();
  return std::min(advertiser_.poll_timeout(), tick_ns);
}

bool FlowReceiver::poll_transmit(i64 now_ns, u8 advert_path, i64 rto_ns, TxBurst* out) noexcept {
  out->peer = peer_;
  out->count = 1;
  out->payload[0] = {};
  if (trims_ != nullptr) {
    write_nack(out);
    return true;
  }
  if (more_pieces_) {
    write_ack(now_ns, piece_path_, out);
    return true;
  }
  if (acks_.due(now_ns)) {
    next_piece_seq_ = window_.cumulative_seq();
    write_ack(now_ns, last_path_, out);
    return true;
  }
  if (!advertiser_.due()) return false;
  // A receiver sends nothing that shows it which paths are dead: each second attempt goes where something came from.
  write_advert(now_ns, advertiser_.retries() % 2 == 1 ? last_path_ : advert_path, rto_ns, out);
  return true;
}

// One acknowledgment speaks of all paths that owe one; it goes back over the path that was alive last.
void FlowReceiver::write_ack(i64 now_ns, u8 path, TxBurst* out) noexcept {
  u64 words[wire::kAckWordsMax];
  wire::PathReport reports[wire::kAckReportsMax];
  wire::Ack ack;
  const bool first = !more_pieces_;
  ack.cumulative_seq = window_.cumulative_seq();
  ack.base_seq = first || next_piece_seq_ < ack.cumulative_seq ? ack.cumulative_seq : next_piece_seq_;
  ack.bitmap_words = window_.copy_words(ack.base_seq, ack_words_max_, words);
  ack.received_bytes = static_cast<u64>(counters_.bytes_received);
  ack.duplicate_segments = static_cast<u32>(counters_.segments_duplicate);
  ack.granted_bytes = granted_bytes();
  // Only the piece that begins at the cumulative edge lets the sender judge what is missing.
  if (first) ack.report_count = acks_.take_reports(now_ns, reports);
  out->path = path;
  out->header_bytes = static_cast<u16>(wire::encode_ack(out->headers, common(path), ack, reports, words));
  out->datagram_bytes = out->header_bytes;
  ++counters_.acks_sent;
  piece_path_ = path;
  next_piece_seq_ = ack.base_seq + 64u * ack.bitmap_words;
  more_pieces_ = ack.bitmap_words == ack_words_max_ && next_piece_seq_ < window_.highest_end();
}

void FlowReceiver::write_advert(i64 now_ns, u8 path, i64 rto_ns, TxBurst* out) noexcept {
  wire::AdvertEntry entries[wire::kAdvertEntriesMax];
  const u64 first = advertiser_.first();
  const u64 left = queue_.posted() - first;
  // No longer than a segment, which over UD is all that can be sent; and longer than what is said again, or a sender
  // that confirms nothing would be told the same for ever.
  const u64 longest = std::max<u64>(segment_bytes_, kAdvertBytesMin);
  const u64 fits = (longest - wire::kAdvertFixedBytes) / wire::kAdvertEntryBytes;
  const u64 count = std::min({left, fits, u64{wire::kAdvertEntriesMax}});
  for (u64 i = 0; i < count; ++i) entries[i] = queue_.advert_of(first + i);
  out->path = path;
  out->header_bytes =
      static_cast<u16>(wire::encode_advert(out->headers, common(path), static_cast<u32>(first), entries, count));
  out->datagram_bytes = out->header_bytes;
  advertiser_.on_sent(count, now_ns, rto_ns);
}

}  // namespace weft::core
