// The sending half of a flow: selects the segments to send, and handles acknowledgments, NACKs and timers. The paths
// belong to the peer's PathSet.
#pragma once

#include <array>
#include <memory>

#include "native/core/advert_ledger.h"
#include "native/core/credit_account.h"
#include "native/core/loss_control.h"
#include "native/core/path_set.h"
#include "native/core/post.h"
#include "native/core/send_queue.h"
#include "native/core/send_trace.h"
#include "native/core/window_control.h"
#include "native/wire/burst.h"

namespace weft::core {

class FlowSender {
 public:
  // Result of poll_transmit(): `sent`, or what the flow waits for.
  enum class Blocked : u8 { sent, idle, window, pacing, paths, advert, stage, credit, memory, room };

  FlowSender(Shared* shared, u32 flow, const FlowConfig& flow_config, const PeerConfig& peer_config,
             PathSet* paths) noexcept;

  // Queues a message.
  Status post(i64 now_ns, const SendPost& send) noexcept;
  // Fills at most one burst. A burst may exceed `budget_bytes` only if it has a single segment.
  Blocked poll_transmit(i64 now_ns, i64 budget_bytes, TxBurst* out) noexcept;
  // Handles an acknowledgment. Returns false and changes nothing if it is malformed or names segments that were not
  // sent.
  bool on_ack(i64 now_ns, const wire::Common& common, const wire::Ack& ack,
              const wire::HopRecords* hops = nullptr) noexcept;
  // Handles a NACK: the receiver refused segments, or has room again. Returns false if it names segments that were not
  // sent. Entries whose segment was resent or acknowledged meanwhile are ignored.
  bool on_nack(i64 now_ns, const wire::Nack& nack) noexcept;
  // Handles the final cumulative sequence number of a peer that closes. Returns false if it covers segments that were
  // not sent.
  bool on_final(i64 now_ns, u64 cumulative_seq) noexcept;
  bool on_advert(const wire::Advert& advert) noexcept {
    if (passed_ != nullptr) adverts_.pass(passed_->sends.load(std::memory_order_acquire));
    if (!adverts_.on_advert(advert, next_number())) return false;
    if (blockless_) open_messages(0);
    return true;
  }
  u64 known_adverts() const noexcept { return adverts_.known(); }
  // True once data was sent that only the latest advertisement permits, which confirms that advertisement.
  bool adverts_confirmed_by_data() const noexcept { return advertised_sent_ >= adverts_.known(); }
  void on_timer(i64 now_ns) noexcept;
  // A probe that a loss policy requested was answered: segments sent before it on the same path have arrived or are
  // lost.
  void on_probed(i64 now_ns, u8 path) noexcept;
  // When the timers for loss, for refused segments and of the window policy expire; kNever: none is set. pace_ns() and
  // demand_ns() are the other timers.
  i64 check_ns() const noexcept { return std::min({next_check_ns_, room_ns_, window_timer_ns()}); }
  // When pacing allows the next burst. kNever if the flow does not wait for pacing, or if nothing is left to send: the
  // only segment to resend may have been acknowledged meanwhile.
  i64 pace_ns() const noexcept { return paced_ && has_outstanding() ? window_.pacer().next_ns() : kNever; }
  i64 demand_ns() const noexcept { return starved() ? credit_.request_ns() : kNever; }

  // Writes a credit request for the receiver. False: none is due.
  bool poll_demand(i64 now_ns, wire::Demand* demand) noexcept;

  // Prefetches what the flow's members point to; prefetch_records(), called later, follows the pointers there.
  void prefetch_records() const noexcept { ledger_.prefetch_segments(); }
  void prefetch() const noexcept {
    queue_.prefetch();
    ledger_.prefetch();
    window_.prefetch();
    loss_.prefetch();
  }
  void prefetch(u8 path) const noexcept {
    if (per_path_ == nullptr) return;
    __builtin_prefetch(&per_path_[path]);
    loss_.prefetch(path);
  }
  // Time of the last progress. stuck_since_ns() is kNever unless the flow waits for the network: waits for the caller
  // or for room at the receiver do not count.
  i64 progress_ns() const noexcept { return progress_ns_; }
  void on_progress(i64 now_ns) noexcept { progress_ns_ = now_ns; }
  i64 stuck_since_ns() noexcept;
  bool has_outstanding() const noexcept { return !queue_.empty(); }
  u64 outstanding() const noexcept { return queue_.outstanding(); }  // number of messages
  u64 unsent_bytes() const noexcept { return queue_.unsent_bytes(); }
  bool has_inflight() const noexcept { return !ledger_.empty(); }
  bool has_lost() const noexcept { return ledger_.has_lost(); }
  // True if the oldest unsent message is longer than the receive posted for it.
  bool is_too_long() const noexcept { return too_long_; }
  template <typename What>
  void each_outstanding(const What& what) const noexcept {
    queue_.each_outstanding(what);
  }
  // Drops all pending sends without events for them; the stack's event flow_failed covers them.
  void abandon() noexcept;
  void release_idle() noexcept;
  const FlowCells& counters() const noexcept { return *counters_; }
  void count_in(FlowCells* counters) noexcept { counters_ = counters; }
  WindowControl& window() noexcept { return window_; }
  // Switches to another window policy. False when out of memory: the old policy stays.
  bool replace_window(i64 now_ns, PolicyChoice choice) noexcept {
    if (!window_.replace(choice, window_standing(now_ns))) return false;
    if (per_path_ != nullptr) measure_delivery();
    return true;
  }
  LossControl& loss() noexcept { return loss_; }
  i64 inflight_bytes() const noexcept { return ledger_.inflight_bytes(); }
  // Updates the gauges of window and bytes in flight, after each burst and each acknowledgment.
  void refresh_gauges() noexcept {
    counters_->window_bytes.set(window_.window_bytes());
    counters_->inflight_bytes.set(ledger_.inflight_bytes());
  }
  std::size_t bytes_held() const noexcept { return per_path_ == nullptr ? 0 : paths_->count() * sizeof(FlowPath); }

 private:
  // Number of the first message that this flow may still have to send. Messages that only other flows carry are never
  // posted on this flow.
  u64 next_number() const noexcept {
    const u64 next = queue_.next_number();
    return passed_ == nullptr ? next : std::max(next, passed_->sends.load(std::memory_order_acquire));
  }
  struct Acked {
    i64 bytes = 0, spurious = 0, segments = 0;
    u64 highest_seq = 0;
    // For each report of the acknowledgment: the send time that it echoes, and the payload size of the segment sent at
    // that time.
    std::size_t echoes = 0;
    i64 echo_sent_ns[wire::kAckReportsMax];
    u16 echo_bytes[wire::kAckReportsMax];
  };
  bool starved() const noexcept { return credit_.is_spent() && (queue_.has_unsent() || ledger_.has_lost()); }
  bool activate() noexcept;
  // Begins or ends the samples of the delivery rate, as the window policy reads them or not. Without memory there are
  // none.
  void measure_delivery() noexcept;
  // The window policy's timer does not run while there is nothing to send.
  i64 window_timer_ns() const noexcept { return has_outstanding() ? window_.timer_ns() : kNever; }
  FlowPath& flow_path(u8 path) noexcept { return per_path_[path]; }
  Blocked start_burst(i64 now_ns, i64 budget_bytes, bool resend, TxBurst* out, i64* limit_bytes) noexcept;
  Blocked gate_new(i64 now_ns) noexcept;
  Blocked gate_resend(i64 now_ns) noexcept;
  Blocked gate_window(i64 now_ns, i64 next_bytes) noexcept;
  void fill_resends(i64 now_ns, i64 limit_bytes, TxBurst* out) noexcept;
  void fill_new(i64 now_ns, i64 limit_bytes, TxBurst* out) noexcept;
  // The bytes of a message that one datagram carries. For a fragment also its offset in the segment and the segment's
  // size.
  struct Piece {
    u64 offset_bytes = 0;
    u16 bytes = 0;
    u16 fragment_offset = 0, segment_bytes = 0;
  };
  bool add_segment(i64 sent_ns, u64 seq, const SendMessage& message, const Piece& piece, u32 remote_key,
                   TxBurst* out) noexcept;
  void add_fragments(i64 sent_ns, u64 seq, const SendMessage& message, u64 offset_bytes, u16 payload_bytes,
                     TxBurst* out) noexcept;
  u16 segment_payload_bytes() const noexcept { return paths_->segment_payload_bytes(); }
  // Payload size of the next segment, in bytes.
  i64 next_payload_bytes(bool resend) noexcept {
    const u16 usual = segment_payload_bytes();
    return resend ? std::max(usual, ledger_.at(ledger_.first_lost()).payload_bytes) : usual;
  }
  void finish_burst(i64 now_ns, TxBurst* out, i64 payload_bytes) noexcept;
  bool is_sane(i64 now_ns, const wire::Common& common, const wire::Ack& ack) const noexcept;
  void acknowledge(u64 seq, Acked* acked) noexcept;
  void acknowledge_bitmap(const wire::Ack& ack, Acked* acked) noexcept;
  void count_needless(const wire::Ack& ack, Acked* acked) noexcept;
  void on_report(i64 now_ns, const wire::PathReport& report, u64 covered_end, i64 spurious,
                 const wire::HopRecords* hops) noexcept;
  struct Lost {
    i64 segments = 0, bytes = 0, oldest_sent_ns = 0, long_segments = 0, trimmed_segments = 0;
    u16 longest_bytes = 0;
  };
  void on_granted(i64 now_ns, u64 granted_bytes) noexcept {
    if (credit_.on_granted(granted_bytes)) on_progress(now_ns);
  }
  void lose(u8 path, u64 seq, Lost* lost) noexcept;
  void on_trimmed(i64 now_ns, const wire::NackEntry& entry, bool last_hop) noexcept;
  // The functions from here to on_tried() are in flow_sender_room.cc.
  bool in_flight_as(const wire::NackEntry& entry) noexcept;
  static bool has_room(const SendMessage& message, u64 end_bytes) noexcept {
    return !message.blockless && end_bytes <= message.room_end;
  }
  // Whether the next message may be sent up to `end_bytes`. A message without a known receive does not start while
  // earlier ones wait for eager blocks.
  bool next_has_room(const SendMessage& message, u64 end_bytes) const noexcept {
    const bool fresh = message.next_offset == message.stripe.begin;
    return has_room(message, end_bytes) && !(blockless_ && fresh && message.number >= adverts_.known());
  }
  void on_no_room(i64 now_ns, const wire::NackEntry& entry, bool for_a_block) noexcept;
  void wait_for_room(i64 now_ns) noexcept;
  void open_messages(u64 count) noexcept;
  void open_stage(u32 message, u64 end_bytes) noexcept;
  void release_held() noexcept;
  void try_for_room(i64 now_ns) noexcept;
  void on_tried(SendMessage& message, u64 end_bytes) noexcept;
  void on_lost(i64 now_ns, u8 path, const Lost& lost) noexcept;
  Lost apply_cutoff(i64 now_ns, u8 path, const LossCutoff& cutoff, u64 covered_end) noexcept;
  void on_cutoff(i64 now_ns, u8 path, const LossCutoff& cutoff, u64 covered_end) noexcept;
  LossFacts loss_facts(i64 now_ns, u8 path) noexcept;
  WindowFacts window_facts(i64 now_ns, u8 path) const noexcept;
  WindowFacts window_standing(i64 now_ns) const noexcept;
  void note_check(u8 path) noexcept;

  Shared* shared_;
  PathSet* paths_;
  FlowCells* counters_;
  SendQueue queue_;
  SendLedger ledger_;
  AdvertLedger adverts_;
  WindowControl window_;
  LossControl loss_;
  std::unique_ptr<FlowPath[]> per_path_;            // null while the flow is idle
  std::unique_ptr<DeliveryRate> delivery_;          // null: idle, or the window policy does not read it
  std::array<u64, kMaxPaths / 64> active_paths_{};  // bit set of paths with segments in flight
  i64 progress_ns_ = 0;
  i64 next_check_ns_ = kNever;  // lower bound of the next_check_ns of all paths
  i64 room_ns_ = kNever;        // time at which a refused message or segment is retried if no news of room came
  i64 room_interval_ns_ = 0;
  u64 tried_message_ = ~u64{0};  // message with a segment in flight that probes for room at the receiver; ~0: none
  CreditAccount credit_;
  u64 lost_bytes_ = 0;  // bytes declared lost so far, including those that were resent since
  u64 highest_acked_seq_ = 0;
  i64 acked_segments_ = 0;       // number of acknowledged segments, each counted once
  i64 path_key_;                 // hash of the flow, for path policies that distinguish flows
  u64 advertised_sent_ = 0;      // 1 + number of the newest sent message that needed an advertisement
  i64 unjudged_resends_ = 0;     // number of resent segments that are not known to be spurious
  u32 reported_duplicates_ = 0;  // the receiver's duplicate count in its last report
  u64 remote_token_;
  u32 remote_flow_;
  const std::shared_ptr<const Passed> passed_;  // messages completed on any flow; null: this is the home flow
  SendTrace trace_;
  u32 peer_;
  u32 train_bytes_max_;
  EagerLimits eager_;
  u8 stripe_, stripes_;
  u8 acked_path_ = 0;  // the path of the latest acknowledgment
  bool payload_crc_;
  bool too_long_ = false;
  bool paced_ = false;
  bool blockless_ = false;  // messages without an advertised receive wait for eager blocks of the receiver
  bool roomless_ = false;   // the next segment waits for room at the receiver
  bool unstaged_ = false;   // the next segment has not been copied into the bounce buffer yet
};

}  // namespace weft::core
