// Receives segments and builds the packets that answer them. To keep buffers safe, a segment is checked in this order
// before a byte of it is written: token (in the stack), duplicate, placement. Its sequence number is marked as received
// only after its bytes are in place with the right CRC. The CRC is computed while copying, so a damaged segment may
// overwrite bytes, but only of a message that is incomplete until the segment arrives again. Bytes written through a
// memory window are in place before any check; to keep late writes out of completed buffers, the window is closed.
#include "native/core/flow_receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "native/wire/crc32c.h"

namespace weft::core {
FlowReceiver::FlowReceiver(Shared* shared, PolicyChoice choice, CreditPort* port, u32 flow,
                           const FlowConfig& flow_config, const PeerConfig& peer_config, const PathSet* paths) noexcept
    : shared_(shared),
      paths_(paths),
      counters_(flow_config.counters),
      window_(&shared->bitmaps),
      queue_(shared, eager_limits(shared->config, flow_config), flow_config.stripe, flow_config.stripes),
      acks_(peer_config.path_count, shared->config.ack_bytes, shared->config.ack_delay_ns),
      remote_token_(flow_config.remote_token),
      remote_flow_(flow_config.remote_flow),
      passed_(flow_config.stripe == kHomeFlow ? nullptr : flow_config.passed),
      flow_(flow),
      peer_(flow_config.peer),
      segment_bytes_(peer_config.segment_bytes),
      path_count_(peer_config.path_count) {
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
  if (acks_.activate()) acks_.on_due(last_path_);  // otherwise the sender would wait for a grant of the old policy
  return true;
}

wire::Common FlowReceiver::common(u8 path) const noexcept {
  wire::Common common;
  common.token = remote_token_;
  common.flow = remote_flow_;
  common.path = path;
  return common;
}

// Handles a duplicate segment: it is acknowledged again, because the first acknowledgment may have been lost.
FlowReceiver::Outcome FlowReceiver::on_again(u8 path) noexcept {
  ++counters_->segments_duplicate;
  repeated_ = true;
  last_path_ = path;
  acks_.on_due(path);
  return Outcome::duplicate;
}

// Reports a trimmed segment to the sender. If the NACK has no room for it, the sender's loss policy must detect the
// loss.
FlowReceiver::Outcome FlowReceiver::on_trimmed(u8 path, const wire::Data& data, bool last_hop) noexcept {
  if (window_.classify(data.seq) == ReceiveWindow::Arrival::beyond) return Outcome::refused;
  if (trims_ == nullptr) trims_.reset(new (std::nothrow) Refusals);
  const bool full = trims_ == nullptr || trims_->count == wire::kNackEntriesMax;
  if (full || !trims_->add(path, data, last_hop)) return Outcome::missing;
  last_path_ = path;
  return Outcome::trimmed;
}

// Reports a segment that was refused for lack of memory. If it cannot be reported, the sender counts it as lost and
// resends it.
FlowReceiver::Outcome FlowReceiver::on_no_room(u8 path, const wire::Data& data, Outcome why) noexcept {
  ++counters_->segments_refused;
  last_path_ = path;
  if (unroomed_ == nullptr) unroomed_.reset(new (std::nothrow) Refusals);
  if (unroomed_ != nullptr) static_cast<void>(unroomed_->add(path, data, why == Outcome::no_block));
  return why;
}

void FlowReceiver::write_nack(wire::Nack::Kind kind, std::unique_ptr<Refusals>* from, TxBurst* out) noexcept {
  Refusals& refusals = **from;
  out->path = refusals.path;
  wire::Nack nack;
  nack.kind = kind;
  nack.granted_bytes = granted_bytes();
  const u64 fits = (control_bytes_max() - wire::kNackFixedBytes) / wire::kNackEntryBytes;
  nack.count = static_cast<u16>(std::min({u64{refusals.count} - refusals.told, u64{wire::kNackEntriesMax}, fits}));
  for (std::size_t i = 0; i < nack.count; ++i) nack.detail |= u64{refusals.bits[refusals.told + i]} << i;
  out->header_bytes =
      static_cast<u16>(wire::encode_nack(out->headers, common(refusals.path), nack, refusals.entries + refusals.told));
  out->datagram_bytes = out->header_bytes;
  refusals.told = static_cast<u16>(refusals.told + nack.count);
  if (refusals.told == refusals.count) from->reset();
}

void FlowReceiver::write_room(wire::Nack nack, TxBurst* out) noexcept {
  nack.granted_bytes = granted_bytes();
  out->path = last_path_;
  out->header_bytes = static_cast<u16>(wire::encode_nack(out->headers, common(last_path_), nack, nullptr));
  out->datagram_bytes = out->header_bytes;
}

// Reports refused segments before free room. In the reverse order, a refusal that is older than the room would make the
// sender wait although there is room.
bool FlowReceiver::poll_refusals(TxBurst* out) noexcept {
  if (trims_ != nullptr) return write_nack(wire::Nack::Kind::trimmed, &trims_, out), true;
  if (unroomed_ != nullptr) return write_nack(wire::Nack::Kind::no_room, &unroomed_, out), true;
  wire::Nack nack;
  if (room_messages_ != 0) {
    nack.kind = wire::Nack::Kind::room;
    nack.detail = std::exchange(room_messages_, 0);
    return write_room(nack, out), true;
  }
  u64 message = 0;
  if (!queue_.room_due() || !queue_.take_room(&message, &nack.detail)) return false;
  nack.kind = wire::Nack::Kind::stage_room;
  nack.message = static_cast<u32>(message);
  return write_room(nack, out), true;
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
  // The CRC of a segment that will not be placed is checked first: damaged bytes may be the reason, and then bad_crc is
  // the right result.
  const auto damaged = [&] { return checked && wire::crc32c(0, payload, datagram.payload_bytes) != data.payload_crc; };
  switch (window_.classify(data.seq)) {
    case ReceiveWindow::Arrival::duplicate:
      return damaged() ? Outcome::bad_crc : on_again(path);
    case ReceiveWindow::Arrival::beyond:
      if (damaged()) return Outcome::bad_crc;
      ++counters_->segments_refused;
      return Outcome::refused;
    case ReceiveWindow::Arrival::fresh:
      break;
  }
  if (!acks_.activate()) return Outcome::missing;
  if ((data.segment_bytes | data.fragment_offset) != 0) {
    return damaged() ? Outcome::bad_crc : on_fragment(now_ns, packet, datagram, message);
  }
  const auto placement = queue_.check(message, data.offset_bytes, datagram.payload_bytes, data.message_bytes);
  if (placement != ReceiveQueue::Placement::placed) {
    return damaged() ? Outcome::bad_crc : on_not_placed(data, path, placement);
  }
  // If fragments of this segment may already be in place, the CRC is checked before the segment overwrites them.
  const bool apart = partial_ != nullptr;
  if (apart && damaged()) return Outcome::bad_crc;
  if (!checked || apart) {
    queue_.write(message, data.offset_bytes, payload, datagram.payload_bytes);
  } else if (queue_.write_checked(message, data.offset_bytes, payload, datagram.payload_bytes) != data.payload_crc) {
    return Outcome::bad_crc;
  }
  if (window_.on_arrival(data.seq) != ReceiveWindow::Arrival::fresh) return Outcome::missing;  // out of memory
  if (apart) partial_->forget(data.seq);
  const bool whole = queue_.place(flow_, message, data.offset_bytes, datagram.payload_bytes);
  return on_placed(now_ns, packet, message, datagram.payload_bytes, datagram.congestion_experienced, whole);
}

FlowReceiver::Outcome FlowReceiver::on_not_placed(const wire::Data& data, u8 path,
                                                  ReceiveQueue::Placement placement) noexcept {
  switch (placement) {
    case ReceiveQueue::Placement::too_long:
      return Outcome::too_long;
    case ReceiveQueue::Placement::no_block:
      return on_no_room(path, data, Outcome::no_block);
    case ReceiveQueue::Placement::no_room:
      return on_no_room(path, data, Outcome::no_room);
    case ReceiveQueue::Placement::refused:
    case ReceiveQueue::Placement::placed:
      break;
  }
  ++counters_->segments_refused;
  return Outcome::refused;
}

FlowReceiver::Outcome FlowReceiver::on_placed(i64 now_ns, const wire::Packet& packet, u64 message, u64 bytes,
                                              bool marked, bool whole) noexcept {
  const u8 path = packet.common.path;
  // A sender needs the advertisement to send a message longer than the eager limit, so this segment confirms it.
  if (packet.data.message_bytes > queue_.eager().bytes) on_confirm(now_ns, message + 1);
  progress_ns_ = fresh_ns_ = now_ns;
  stale_acks_ = 0;
  ++counters_->segments_received;
  counters_->bytes_received += static_cast<i64>(bytes);
  last_path_ = path;
  acks_.on_segment(now_ns, shared_->host, path, packet.data.sent_ns, bytes, marked);
  if (whole) acks_.on_message_whole();
  if (credit_ != nullptr) {
    if (marked) credit_->on_mark();
    static_cast<void>(credit_->on_demand(now_ns, 0, credited_bytes()));
  }
  return Outcome::taken;
}

// Places a fragment, after checking the whole segment. The segment counts as received once all its fragments are
// placed.
FlowReceiver::Outcome FlowReceiver::on_fragment(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram,
                                                u64 message) noexcept {
  const wire::Data& data = packet.data;
  const u32 end = data.fragment_offset + datagram.payload_bytes;
  const bool aligned = data.fragment_offset % 8 == 0 && (end % 8 == 0 || end == data.segment_bytes);
  const bool inside = datagram.payload_bytes != 0 && end <= data.segment_bytes &&
                      data.segment_bytes <= wire::segment_payload_bytes(segment_bytes_) &&
                      data.fragment_offset <= data.offset_bytes;
  if (!aligned || !inside || datagram.body != RxDatagram::Body::here) {
    ++counters_->segments_refused;
    return Outcome::refused;
  }
  const u64 begin = data.offset_bytes - data.fragment_offset;
  const auto placement = queue_.check(message, begin, data.segment_bytes, data.message_bytes);
  if (placement != ReceiveQueue::Placement::placed) return on_not_placed(data, packet.common.path, placement);
  if (partial_ == nullptr)
    partial_.reset(new (std::nothrow) PartialSegments(wire::segment_payload_bytes(segment_bytes_)));
  if (partial_ == nullptr) return Outcome::missing;
  bool marked = datagram.congestion_experienced;
  switch (partial_->on_fragment({data.seq, message, data.message_bytes, begin, data.segment_bytes},
                                data.fragment_offset, static_cast<u16>(datagram.payload_bytes), &marked)) {
    case PartialSegments::Outcome::memory:
      return Outcome::missing;
    case PartialSegments::Outcome::foreign:
      ++counters_->segments_refused;
      return Outcome::refused;
    case PartialSegments::Outcome::repeated:
      return Outcome::duplicate;
    case PartialSegments::Outcome::fresh:
      queue_.write(message, data.offset_bytes, datagram.payload, datagram.payload_bytes);
      last_path_ = packet.common.path;
      progress_ns_ = now_ns;
      return Outcome::taken;
    case PartialSegments::Outcome::complete:
      break;
  }
  if (window_.on_arrival(data.seq) != ReceiveWindow::Arrival::fresh) return Outcome::missing;  // out of memory
  queue_.write(message, data.offset_bytes, datagram.payload, datagram.payload_bytes);
  const bool whole = queue_.place(flow_, message, begin, data.segment_bytes);
  return on_placed(now_ns, packet, message, data.segment_bytes, marked, whole);
}

Status FlowReceiver::post(i64 now_ns, const ReceivePost& receive) noexcept {
  if (!advertiser_.unanswered()) progress_ns_ = now_ns;
  const Status status = queue_.post(flow_, receive);
  if (status == Status::ok) {
    const bool urgent = receive.capacity_bytes > queue_.eager().bytes || queue_.eager().slots < 2;
    advertiser_.on_post(now_ns, queue_.posted(), urgent, queue_.eager().slots);
    if (passed_ != nullptr) {
      advertiser_.pass(std::min(receive.message, passed_->receives.load(std::memory_order_acquire)));
    }
    if (queue_.unblocked_by_post()) ++room_messages_;
  }
  return status;
}

void FlowReceiver::on_demand(i64 now_ns, u8 path, const wire::Demand& demand) noexcept {
  if ((credit_ == nullptr && !credit_lifted_) || path >= path_count_ || demand.lost_bytes > demand.demand_bytes) return;
  lost_bytes_ = std::max(lost_bytes_, demand.lost_bytes);
  // `credit_` is null if the credit policy was removed: the acknowledgment requested by acks_.on_due() below then tells
  // the sender that credit is unlimited.
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

bool FlowReceiver::poll_transmit(i64 now_ns, u8 usable_path, i64 rto_ns, TxBurst* out) noexcept {
  out->peer = peer_;
  out->count = 1;
  out->payload[0] = {};
  if (poll_refusals(out)) return true;
  if (more_pieces_) {
    write_ack(now_ns, piece_path_, out);
    return true;
  }
  if (acks_.due(now_ns)) {
    next_piece_seq_ = window_.cumulative_seq();
    write_ack(now_ns, reply_path(last_path_, usable_path), out);
    return true;
  }
  if (again_ != nullptr) {
    out->path = usable_path;
    std::memcpy(out->headers, again_->packet, again_->bytes);
    wire::set_path(out->headers, again_->bytes, usable_path);
    out->header_bytes = again_->bytes;
    out->datagram_bytes = again_->bytes;
    if (--again_->left == 0) again_.reset();
    return true;
  }
  if (!advertiser_.due()) return false;
  // Every other retry takes another path than the one last heard from, which may be dead in this direction.
  const bool heard = paths_->heard_ns() >= 0 && advertiser_.retries() % 2 == 0;
  write_advert(now_ns, heard ? reply_path(paths_->heard_path(), usable_path) : usable_path, rto_ns, out);
  return true;
}

void FlowReceiver::say_again(const TxBurst& said, u32 tries) noexcept {
  again_.reset();
  if (tries < kTriesAlone) return;
  again_.reset(new (std::nothrow) Again);
  if (again_ == nullptr) return;
  std::memcpy(again_->packet, said.headers, said.header_bytes);
  again_->bytes = said.header_bytes;
  again_->left = std::min(kCopiesMax, static_cast<u8>(1u << std::min(tries - kTriesAlone, 3u)));
}

// Writes the next packet of an acknowledgment, which may need several. The first packet reports on the paths with new
// segments.
void FlowReceiver::write_ack(i64 now_ns, u8 path, TxBurst* out) noexcept {
  u64 words[wire::kAckWordsMax];
  wire::PathReport reports[wire::kAckReportsMax];
  wire::Ack ack;
  const bool first = !more_pieces_;
  ack.cumulative_seq = window_.cumulative_seq();
  ack.base_seq = first || next_piece_seq_ < ack.cumulative_seq ? ack.cumulative_seq : next_piece_seq_;
  const std::size_t words_max = wire::ack_words_max(control_bytes_max());
  ack.bitmap_words = window_.copy_words(ack.base_seq, words_max, words);
  const bool cut_short = ack.bitmap_words == words_max;
  ack.received_bytes = static_cast<u64>(counters_->bytes_received);
  ack.duplicate_segments = static_cast<u32>(counters_->segments_duplicate);
  ack.granted_bytes = granted_bytes();
  if (first) ack.report_count = acks_.take_reports(now_ns, shared_->host, reports);
  out->path = path;
  wire::Common common = this->common(path);
  if (cut_short) common.flags |= wire::kFlagCutShort;
  out->header_bytes = static_cast<u16>(wire::encode_ack(out->headers, common, ack, reports, words));
  out->datagram_bytes = out->header_bytes;
  ++counters_->acks_sent;
  if (std::exchange(repeated_, false) && first) {
    ++stale_acks_;
    if (now_ns - fresh_ns_ >= kStaleTimeouts * shared_->config.rto_ns_min)
      say_again(*out, kTriesAlone - 1 + stale_acks_);
  }
  piece_path_ = path;
  next_piece_seq_ = ack.base_seq + 64u * ack.bitmap_words;
  more_pieces_ = cut_short && next_piece_seq_ < window_.highest_end();
}

void FlowReceiver::write_advert(i64 now_ns, u8 path, i64 rto_ns, TxBurst* out) noexcept {
  wire::AdvertEntry entries[wire::kAdvertEntriesMax];
  const u64 first = advertiser_.first();
  const u64 left = queue_.posted() - first;
  // `fits`: how many entries the longest control packet holds. A control packet is no longer than a segment, because UD
  // queue pairs carry nothing longer, but may always have kControlBytesLeast bytes. These hold more entries than the
  // kSaidAgainMax that are repeated, so every advertisement has new ones.
  const u64 fits = (control_bytes_max() - wire::kAdvertFixedBytes) / wire::kAdvertEntryBytes;
  // `few`: after several advertisements without an answer, retries are shorter, because the earlier ones may have been
  // too long for the path to the sender.
  const u64 few = advertiser_.retries() < kTriesAlone ? left : u64{Advertiser::kSaidAgainMax} + 1;
  const u64 count = std::min({left, fits, few, u64{wire::kAdvertEntriesMax}});
  for (u64 i = 0; i < count; ++i) entries[i] = queue_.advert_of(first + i);
  out->path = path;
  out->header_bytes =
      static_cast<u16>(wire::encode_advert(out->headers, common(path), static_cast<u32>(first), entries, count));
  out->datagram_bytes = out->header_bytes;
  advertiser_.on_sent(count, now_ns, rto_ns, shared_->config.rto_ns_max);
  say_again(*out, advertiser_.retries());
}

}  // namespace weft::core
