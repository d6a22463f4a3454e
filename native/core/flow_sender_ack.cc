// Handles acknowledgments, NACKs and loss timers of a sender. The whole acknowledgment is validated before any of it is
// used (P-6).
#include <algorithm>
#include <bit>
#include <cstring>

#include "native/core/flow_sender.h"

namespace weft::core {

bool FlowSender::is_sane(i64 now_ns, const wire::Common& common, const wire::Ack& ack) const noexcept {
  if (common.path >= paths_->count()) return false;
  if (ack.cumulative_seq > ledger_.next_seq() || ack.base_seq < ack.cumulative_seq) return false;
  if (ack.base_seq > ledger_.next_seq()) return false;
  if (ack.bitmap_words != 0) {
    // Checks that the highest bit set in the bitmap stands for a segment that was sent.
    u64 last;
    std::memcpy(&last, ack.bitmap + 8u * (ack.bitmap_words - 1u), 8);
    const u64 end = ack.base_seq + 64u * (ack.bitmap_words - 1u) + 64u - static_cast<u64>(std::countl_zero(last));
    if (end > ledger_.next_seq()) return false;
  }
  for (std::size_t i = 0; i < ack.report_count; ++i) {
    const wire::PathReport report = ack.report(i);
    const i64 latest_ns = std::max(now_ns, shared_->last_sent_ns);
    if (report.path >= paths_->count() || report.echo_sent_ns < 0 || report.echo_sent_ns > latest_ns) return false;
  }
  return true;
}

void FlowSender::acknowledge(u64 seq, Acked* acked) noexcept {
  SentSegment& segment = ledger_.at(seq);
  if (segment.state == SentSegment::acked) return;
  FlowPath& path = flow_path(segment.path);
  if (segment.state == SentSegment::in_flight) {
    --path.inflight_segments;
    paths_->on_gone(segment.path, segment.payload_bytes);
  } else if (segment.state == SentSegment::lost) {
    ++acked->spurious;  // declared lost too early: the segment has arrived
  }
  for (std::size_t i = 0; i < acked->echoes; ++i) {
    if (acked->echo_sent_ns[i] == segment.sent_ns) acked->echo_bytes[i] = segment.payload_bytes;
  }
  ledger_.on_acked(&path.order, seq);
  if (path.order.empty()) {
    path.next_check_ns = kNever;
    active_paths_[segment.path / 64] &= ~(u64{1} << (segment.path % 64));
  }
  path.acked_bytes += segment.payload_bytes;
  ++path.acked_segments;
  ++acked_segments_;
  acked->bytes += segment.payload_bytes;
  ++acked->segments;
  acked->highest_seq = std::max(acked->highest_seq, seq);
  SendMessage& message = queue_.at(segment.message_slot);
  if (message.number == tried_message_) on_tried(message, segment.offset_bytes + segment.payload_bytes);
  if (message.staged) message.stage->release(segment.offset_bytes, segment.payload_bytes);
  if (queue_.on_acked(message, segment.payload_bytes)) trace_.done(message);
}

void FlowSender::acknowledge_bitmap(const wire::Ack& ack, Acked* acked) noexcept {
  for (std::size_t word = 0; word < ack.bitmap_words; ++word) {
    u64 bits;
    std::memcpy(&bits, ack.bitmap + 8 * word, 8);
    const u64 base = ack.base_seq + 64 * word;
    while (bits != 0) {
      const u64 seq = base + static_cast<u64>(std::countr_zero(bits));
      bits &= bits - 1;
      if (ledger_.holds(seq)) acknowledge(seq, acked);
    }
  }
}

// Counts spurious resends from the receiver's count of duplicates. The network may duplicate packets too, so no more
// are counted than this flow has resent.
void FlowSender::count_needless(const wire::Ack& ack, Acked* acked) noexcept {
  const auto fresh = static_cast<std::int32_t>(ack.duplicate_segments - reported_duplicates_);
  if (fresh <= 0) return;
  reported_duplicates_ = ack.duplicate_segments;
  const i64 needless = std::min<i64>(fresh, unjudged_resends_);
  unjudged_resends_ -= needless;
  acked->spurious += needless;
  counters_->spurious_resends += needless;
}

WindowFacts FlowSender::window_facts(i64 now_ns, u8 path) const noexcept {
  WindowFacts facts;
  facts.now_ns = now_ns;
  facts.rtt = &paths_->path(path).rtt;
  facts.path = path;
  facts.inflight_bytes = ledger_.inflight_bytes();
  facts.delivered_bytes = counters_->bytes_sent;
  facts.app_limited = !queue_.has_unsent() || unstaged_ || roomless_;
  if (const SendMessage* message = queue_.oldest()) {
    facts.message_bytes = static_cast<i64>(message->message_bytes);
    facts.message_left_bytes = static_cast<i64>(message->unacked_bytes);
  }
  return facts;
}

// The facts for the start hook of a window policy: the state of the measured path with the smallest smoothed round-trip
// time.
WindowFacts FlowSender::window_standing(i64 now_ns) const noexcept {
  u16 best = 0;
  for (u16 path = 1; path < paths_->count(); ++path) {
    const RttEstimator &rtt = paths_->path(path).rtt, &least = paths_->path(best).rtt;
    if (rtt.measured() && (!least.measured() || rtt.smoothed_ns() < least.smoothed_ns())) best = path;
  }
  return window_facts(now_ns, static_cast<u8>(best));
}

LossFacts FlowSender::loss_facts(i64 now_ns, u8 path) noexcept {
  const FlowPath& state = flow_path(path);
  LossFacts facts;
  facts.now_ns = now_ns;
  facts.path = path;
  facts.rtt = &paths_->path(path).rtt;
  facts.rto_ns = paths_->rto_ns(path);
  if (!state.order.empty()) {
    facts.oldest_sent_ns = ledger_.at(ledger_.seq_of(state.order.head)).sent_ns;
    facts.newest_sent_ns = ledger_.at(ledger_.seq_of(state.order.tail)).sent_ns;
  }
  facts.highest_acked_seq = highest_acked_seq_;
  facts.cumulative_seq = ledger_.cumulative_seq();
  facts.sacked_segments = acked_segments_ - static_cast<i64>(ledger_.cumulative_seq());
  facts.window_bytes = window_.window_bytes();
  facts.probed_sent_ns = paths_->trouble(path).probed_sent_ns;
  return facts;
}

void FlowSender::note_check(u8 path) noexcept {
  FlowPath& state = flow_path(path);
  if (state.order.empty()) state.next_check_ns = kNever;
  next_check_ns_ = std::min(next_check_ns_, state.next_check_ns);
}

// Declares the segments of a path lost that the loss cutoff covers, oldest first. Segments from `covered_end` on are
// left out, because the acknowledgment does not cover them.
FlowSender::Lost FlowSender::apply_cutoff(i64 now_ns, u8 path, const LossCutoff& cutoff, u64 covered_end) noexcept {
  FlowPath& state = flow_path(path);
  if (cutoff.probe) paths_->ask_probe(now_ns, path);
  Lost lost;
  while (!state.order.empty()) {
    const u64 seq = ledger_.seq_of(state.order.head);
    const SentSegment& segment = ledger_.at(seq);
    if (!cutoff.names(segment, seq) || seq >= covered_end) break;
    lose(path, seq, &lost);
  }
  if (lost.segments != 0) on_lost(now_ns, path, lost);
  return lost;
}

void FlowSender::lose(u8 path, u64 seq, Lost* lost) noexcept {
  FlowPath& state = flow_path(path);
  const SentSegment& segment = ledger_.at(seq);
  if (lost->segments == 0) lost->oldest_sent_ns = segment.sent_ns;
  lost->bytes += segment.payload_bytes;
  ++lost->segments;
  const u16 sent_bytes =
      std::min(segment.payload_bytes, segment_payload_bytes());  // a longer segment was sent in fragments of this size
  lost->longest_bytes = std::max(lost->longest_bytes, sent_bytes);
  lost->long_segments += paths_->tells_size(sent_bytes) ? 1 : 0;
  lost_bytes_ += segment.payload_bytes;
  paths_->on_gone(path, segment.payload_bytes);
  --state.inflight_segments;
  ledger_.on_lost(&state.order, seq);
}

void FlowSender::on_lost(i64 now_ns, u8 path, const Lost& lost) noexcept {
  if (flow_path(path).order.empty()) active_paths_[path / 64] &= ~(u64{1} << (path % 64));
  counters_->segments_lost += lost.segments;
  trace_.lost(Event::Kind::loss, path, lost.segments);
  paths_->on_lost(now_ns, path, lost.segments, lost.oldest_sent_ns, lost.longest_bytes, lost.long_segments);
  WindowFacts facts = window_facts(now_ns, path);
  facts.lost_bytes = lost.bytes;
  facts.lost_segments = lost.segments;
  facts.trimmed_segments = lost.trimmed_segments;
  window_.on_loss(facts);
}

bool FlowSender::on_nack(i64 now_ns, const wire::Nack& nack) noexcept {
  for (std::size_t i = 0; i < nack.count; ++i) {
    if (nack.entry(i).seq >= ledger_.next_seq()) return false;
  }
  if (nack.kind > wire::Nack::Kind::stage_room) return false;
  on_granted(now_ns, nack.granted_bytes);
  if (per_path_ == nullptr) return true;
  if (nack.kind != wire::Nack::Kind::trimmed)
    on_progress(now_ns);  // counts as progress: the network works, only the receiver lacks room
  if (nack.kind == wire::Nack::Kind::room) open_messages(nack.detail);
  if (nack.kind == wire::Nack::Kind::stage_room) open_stage(nack.message, nack.detail);
  for (std::size_t i = 0; i < nack.count; ++i) {
    const wire::NackEntry entry = nack.entry(i);
    const bool bit = (nack.detail >> i & 1u) != 0;
    if (!in_flight_as(entry)) continue;
    if (nack.kind == wire::Nack::Kind::trimmed) on_trimmed(now_ns, entry, bit);
    if (nack.kind == wire::Nack::Kind::no_room) on_no_room(now_ns, entry, bit);
  }
  return true;
}

// Declares a trimmed segment lost. If it was cut on the last hop (the receiver's link), its path is not to blame and
// the path policy gets no negative feedback.
void FlowSender::on_trimmed(i64 now_ns, const wire::NackEntry& entry, bool last_hop) noexcept {
  const u8 path = ledger_.at(entry.seq).path;
  Lost lost;
  lose(path, entry.seq, &lost);
  ++counters_->segments_trimmed;
  lost.trimmed_segments = 1;
  on_lost(now_ns, path, lost);
  if (last_hop) {
    paths_->on_heard(now_ns, path);
  } else {
    paths_->on_feedback(now_ns, path, PathSet::Feedback::nack, {}, lost.bytes, path_key_);
  }
  note_check(path);
}

// Declares segments lost after an acknowledgment. The path works, as a later packet came through, so the path policy
// gets the losses as negative feedback.
void FlowSender::on_cutoff(i64 now_ns, u8 path, const LossCutoff& cutoff, u64 covered_end) noexcept {
  const Lost lost = apply_cutoff(now_ns, path, cutoff, covered_end);
  if (lost.segments != 0) paths_->on_feedback(now_ns, path, PathSet::Feedback::nack, {}, lost.bytes, path_key_);
  note_check(path);
}

// Passes one path's report in an acknowledgment to the path, window and loss policies, one event each.
void FlowSender::on_report(i64 now_ns, const wire::PathReport& report, u64 covered_end, i64 spurious,
                           const wire::HopRecords* hops) noexcept {
  FlowPath& path = flow_path(report.path);
  const i64 acked_bytes = path.acked_bytes, acked_segments = path.acked_segments;
  path.acked_bytes = path.acked_segments = 0;
  const auto ecn_delta = static_cast<i64>(static_cast<std::int32_t>(report.ecn_segments - path.reported_ecn_segments));
  const bool known = path.reported && ecn_delta >= 0;
  const i64 ecn = std::min(known ? ecn_delta : static_cast<i64>(report.ecn_segments), acked_segments);
  path.reported = true;
  path.reported_segments = report.segments;
  path.reported_ecn_segments = report.ecn_segments;
  // An echoed send time that is not newer than the last one (from a reordered or duplicate acknowledgment) is no RTT
  // sample.
  const bool fresh = report.echo_sent_ns > path.newest_acked_sent_ns;
  if (!fresh && acked_segments == 0) return;  // a duplicate or replayed report says nothing new about the path
  path.newest_acked_sent_ns = std::max(path.newest_acked_sent_ns, report.echo_sent_ns);
  acked_path_ = report.path;
  // The RTT sample excludes the delay that the receiver reports and the time that the acknowledgment waited in the
  // local socket.
  const i64 away_ns = std::min(i64{report.away_ns}, i64{report.ack_delay_ns});
  const i64 late_ns = shared_->host.late_ns();
  const i64 measured_ns = shared_->host.arrived_ns() - report.echo_sent_ns - i64{report.ack_delay_ns};
  paths_->on_peer_away(now_ns, away_ns);
  RttSample rtt;
  if (fresh && measured_ns > 0 && !shared_->host.left_late(report.echo_sent_ns)) rtt = {measured_ns, away_ns + late_ns};
  paths_->on_feedback(now_ns, report.path, ecn > 0 ? PathSet::Feedback::ecn : PathSet::Feedback::good, rtt, acked_bytes,
                      path_key_);

  if (acked_segments != 0) {
    WindowFacts facts = window_facts(now_ns, report.path);
    facts.rtt_ns = rtt.rtt_ns;
    facts.ack_delay_ns = i64{report.ack_delay_ns} - away_ns;
    facts.acked_bytes = acked_bytes;
    facts.acked_segments = acked_segments;
    facts.ecn_segments = ecn;
    if (delivery_ != nullptr) {
      facts.delivery = delivery_->on_ack(now_ns, report.echo_sent_ns, facts.delivered_bytes, facts.rtt->smoothed_ns(),
                                         facts.rtt->min_ns());
    }
    if (hops != nullptr) facts.hops = wire::find_hops(hops, report.path, report.echo_sent_ns);
    window_.on_ack(facts);
  }
  LossFacts loss = loss_facts(now_ns, report.path);
  loss.rtt_ns = rtt.rtt_ns < 0 ? -1 : rtt.rtt_ns + rtt.host_ns;
  loss.acked_segments = acked_segments;
  loss.spurious_segments = spurious;
  on_cutoff(now_ns, report.path, loss_.on_ack(loss, &path), covered_end);
}

bool FlowSender::on_ack(i64 now_ns, const wire::Common& common, const wire::Ack& ack,
                        const wire::HopRecords* hops) noexcept {
  if (!is_sane(now_ns, common, ack)) return false;
  ++counters_->acks_received;
  on_granted(now_ns, ack.granted_bytes);
  if (per_path_ == nullptr) return true;  // the flow is idle: nothing in flight can be acknowledged
  Acked acked;
  if (paths_->searches()) {
    for (; acked.echoes < ack.report_count; ++acked.echoes) {
      acked.echo_sent_ns[acked.echoes] = ack.report(acked.echoes).echo_sent_ns;
      acked.echo_bytes[acked.echoes] = 0;
    }
  }
  for (u64 seq = ledger_.cumulative_seq(); seq < ack.cumulative_seq; ++seq) acknowledge(seq, &acked);
  acknowledge_bitmap(ack, &acked);
  count_needless(ack, &acked);
  counters_->bytes_sent += acked.bytes;
  if (acked.segments != 0) on_progress(now_ns);
  highest_acked_seq_ = std::max(highest_acked_seq_, acked.highest_seq);
  ledger_.advance();
  queue_.advance();
  const bool cut_short = (common.flags & wire::kFlagCutShort) != 0;
  const u64 covered_end = cut_short ? ack.base_seq + 64u * ack.bitmap_words : ~u64{0};
  for (std::size_t i = 0; i < ack.report_count; ++i) {
    // Send times are unique, so the echoed send time identifies the segment that this path carried.
    if (i < acked.echoes && acked.echo_bytes[i] != 0) {
      paths_->on_carried(now_ns, ack.report(i).path, acked.echo_bytes[i]);
    }
    // It is unknown which path had the spurious loss, so the loss policy gets the count with every reported path.
    on_report(now_ns, ack.report(i), covered_end, acked.spurious, hops);
  }
  refresh_gauges();
  return true;
}

bool FlowSender::on_final(i64 now_ns, u64 cumulative_seq) noexcept {
  wire::Common common;
  wire::Ack ack;
  ack.cumulative_seq = ack.base_seq = cumulative_seq;
  ack.granted_bytes = kNoCredit;
  return on_ack(now_ns, common, ack);
}

void FlowSender::on_probed(i64 now_ns, u8 path) noexcept {
  if (per_path_ == nullptr || flow_path(path).order.empty()) return;
  on_cutoff(now_ns, path, loss_.on_ack(loss_facts(now_ns, path), &flow_path(path)), ~u64{0});
}

void FlowSender::on_timer(i64 now_ns) noexcept {
  if (now_ns >= room_ns_) try_for_room(now_ns);
  if (now_ns >= window_timer_ns()) window_.on_timer(window_facts(now_ns, acked_path_));
  if (now_ns < next_check_ns_ || per_path_ == nullptr) return;
  next_check_ns_ = kNever;
  for (std::size_t word = 0; word < active_paths_.size(); ++word) {
    for (u64 bits = active_paths_[word]; bits != 0; bits &= bits - 1) {
      const auto path = static_cast<u8>(64 * word + static_cast<std::size_t>(std::countr_zero(bits)));
      FlowPath& state = flow_path(path);
      if (state.next_check_ns <= now_ns) {
        const LossCutoff cutoff = loss_.on_timer(loss_facts(now_ns, path), &state);
        const Lost lost = apply_cutoff(now_ns, path, cutoff, ~u64{0});
        if (lost.segments != 0 &&
            paths_->on_timeout(now_ns, path, lost.oldest_sent_ns, path_key_, lost.longest_bytes)) {
          trace_.lost(Event::Kind::timeout, path, lost.segments);
          window_.on_timeout(window_facts(now_ns, path));
        }
      }
      note_check(path);
    }
  }
}

}  // namespace weft::core
