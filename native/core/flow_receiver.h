// The receiving half of a flow: places each segment once into a posted buffer or an eager block, and produces
// acknowledgments, NACKs and receive advertisements.
#pragma once

#include <bitset>
#include <memory>

#include "native/core/ack_schedule.h"
#include "native/core/advertiser.h"
#include "native/core/credit_control.h"
#include "native/core/partial_segments.h"
#include "native/core/path_set.h"
#include "native/core/post.h"
#include "native/core/receive_queue.h"
#include "native/core/receive_window.h"
#include "native/wire/burst.h"

namespace weft::core {

// Trimmed or refused segments that still have to be reported to the sender.
struct Refusals {
  static constexpr u16 kMax = 16 * wire::kNackEntriesMax;  // most segments that can wait to be reported: 1,024
  wire::NackEntry entries[kMax];
  // One bit per entry. Of a trimmed segment: it was trimmed on the last hop. Of a refused one: no eager block was free.
  std::bitset<kMax> bits;
  u16 count = 0;
  u16 told = 0;
  u8 path = 0;

  bool add(u8 by_path, const wire::Data& data, bool bit) noexcept {
    if (count == kMax) return false;
    entries[count] = {data.seq, data.sent_ns};
    bits[count++] = bit;
    path = by_path;
    return true;
  }
};

class FlowReceiver {
 public:
  // missing: the header arrived without its payload, or memory ran out. trimmed: a full switch queue cut off the
  // payload. no_block, no_room: see ReceiveQueue::Placement; the sender must wait until there is memory.
  enum class Outcome : u8 { taken, duplicate, refused, missing, trimmed, bad_crc, too_long, no_block, no_room };

  // `port`: null if no credit policy is used. `paths`: the paths to the peer; their segment size limits control
  // packets.
  FlowReceiver(Shared* shared, PolicyChoice choice, CreditPort* port, u32 flow, const FlowConfig& flow_config,
               const PeerConfig& peer_config, const PathSet* paths) noexcept;
  ~FlowReceiver();
  // Switches to another credit policy, or to none. False when out of memory: the old policy stays.
  bool set_credit(PolicyChoice choice, CreditPort* port) noexcept;
  CreditControl* credit() noexcept { return credit_.get(); }

  Outcome on_data(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram) noexcept;
  Status post(i64 now_ns, const ReceivePost& receive) noexcept;
  void on_advert_ack(i64 now_ns, const wire::AdvertAck& ack) noexcept {
    on_confirm(now_ns, expand32(queue_.posted(), ack.posted_messages));
  }
  // Time of the last progress. A receiver can only be stuck while an advertisement is unconfirmed, not while it waits
  // for data.
  i64 progress_ns() const noexcept { return progress_ns_; }
  i64 stuck_since_ns() const noexcept { return advertiser_.unanswered() ? progress_ns_ : kNever; }
  void on_demand(i64 now_ns, u8 path, const wire::Demand& demand) noexcept;
  void on_timer(i64 now_ns) noexcept;
  i64 poll_timeout() const noexcept;
  i64 ack_ns() const noexcept { return acks_.poll_timeout(); }  // deadline of a delayed acknowledgment

  // Writes one control packet into `out`; false when none is due. `usable_path`: a path that is not silent, if any.
  bool poll_transmit(i64 now_ns, u8 usable_path, i64 rto_ns, TxBurst* out) noexcept;
  bool due(i64 now_ns) const noexcept {
    return acks_.due(now_ns) || more_pieces_ || advertiser_.due() || trims_ != nullptr || unroomed_ != nullptr ||
           room_messages_ != 0 || queue_.room_due() || again_ != nullptr;
  }
  // Makes the receiver tell the sender that an eager block is free for one more refused message.
  void offer_room() noexcept { ++room_messages_; }
  bool wants_block() const noexcept { return queue_.wants_block(); }
  u64 eager_held() const noexcept { return queue_.eager_held(); }
  // The copier (stage.h) has emptied more of a receive's bounce buffer.
  void on_emptied() noexcept { queue_.on_emptied(); }
  bool room_due() const noexcept { return queue_.room_due(); }

  void prefetch() const noexcept {
    window_.prefetch();
    queue_.prefetch();
  }
  void prefetch_records() const noexcept { queue_.prefetch_ticket(); }
  void prefetch(u8 path) const noexcept { acks_.prefetch(path); }
  u64 cumulative_seq() const noexcept { return window_.cumulative_seq(); }
  u64 posted() const noexcept { return queue_.posted(); }
  template <typename What>
  void each_outstanding(const What& what) const noexcept {
    queue_.each_outstanding(what);
  }
  bool waits() const noexcept { return queue_.pending(); }
  bool awaits() const noexcept { return queue_.awaits(); }
  u64 outstanding() const noexcept { return queue_.outstanding(); }  // number of receives
  void forget_elsewhere() noexcept { queue_.forget_elsewhere(); }
  u64 held() const noexcept { return queue_.held(); }
  void release_idle() noexcept {
    acks_.release();
    queue_.release();
    partial_.reset();
  }
  const FlowCells& counters() const noexcept { return *counters_; }
  void count_in(FlowCells* counters) noexcept { counters_ = counters; }
  std::size_t bytes_held() const noexcept {
    return acks_.bytes_held() + (partial_ == nullptr ? 0 : partial_->bytes_held());
  }

 private:
  Outcome on_again(u8 path) noexcept;
  Outcome on_placed(i64 now_ns, const wire::Packet& packet, u64 message, u64 bytes, bool marked, bool whole) noexcept;
  Outcome on_fragment(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram, u64 message) noexcept;
  Outcome on_not_placed(const wire::Data& data, u8 path, ReceiveQueue::Placement placement) noexcept;
  // Largest control packet, in bytes: it must fit into the datagrams that the paths carry.
  u64 control_bytes_max() const noexcept { return std::max<u64>(paths_->segment_bytes(), kControlBytesLeast); }
  Outcome on_trimmed(u8 path, const wire::Data& data, bool last_hop) noexcept;
  u64 granted_bytes() const noexcept {
    return credit_ != nullptr ? credit_->granted_bytes() : credit_lifted_ ? kNoCredit - 1 : kNoCredit;
  }
  u64 credited_bytes() const noexcept { return static_cast<u64>(counters_->bytes_received) + lost_bytes_; }
  Outcome on_no_room(u8 path, const wire::Data& data, Outcome why) noexcept;
  void write_nack(wire::Nack::Kind kind, std::unique_ptr<Refusals>* from, TxBurst* out) noexcept;
  void write_room(wire::Nack nack, TxBurst* out) noexcept;
  void on_confirm(i64 now_ns, u64 confirmed) noexcept {
    // The sender may confirm more than was advertised, as it knows which messages went over other flows.
    if (passed_ != nullptr) confirmed = std::min(confirmed, queue_.posted());
    if (confirmed > advertiser_.confirmed() && confirmed <= queue_.posted()) progress_ns_ = now_ns;
    advertiser_.on_confirm(confirmed);
  }
  void say_again(const TxBurst& said, u32 tries) noexcept;
  bool poll_refusals(TxBurst* out) noexcept;
  void write_ack(i64 now_ns, u8 path, TxBurst* out) noexcept;
  void write_advert(i64 now_ns, u8 path, i64 rto_ns, TxBurst* out) noexcept;
  wire::Common common(u8 path) const noexcept;
  // A flow that only receives does not know which paths work in its sending direction, so it replies on the path that
  // data came over.
  u8 reply_path(u8 heard, u8 usable_path) const noexcept { return paths_->path(heard).usable ? heard : usable_path; }

  // A control packet that gets no answer, kept to be sent again over several paths.
  struct Again {
    u8 packet[wire::kControlBytesMax];
    u16 bytes;
    u8 left;
  };
  static constexpr u32 kTriesAlone = 4;  // after this many unanswered retries, a control packet is sent several times
  static constexpr u8 kCopiesMax = 7;
  // If only duplicates arrive for this many times rto_ns_min, the acknowledgments are probably lost.
  static constexpr i64 kStaleTimeouts = 50;
  // Control packets may always be this long, even if segments are shorter: it is enough for 17 advertised receives, one
  // more than kSaidAgainMax.
  static constexpr u64 kControlBytesLeast = 440;

  Shared* shared_;
  const PathSet* paths_;
  FlowCells* counters_;
  ReceiveWindow window_;
  ReceiveQueue queue_;
  AckSchedule acks_;
  Advertiser advertiser_;
  std::unique_ptr<CreditControl> credit_;     // null: no credit policy is used
  std::unique_ptr<Refusals> trims_;           // trimmed segments to report; null: none
  std::unique_ptr<Refusals> unroomed_;        // segments refused for lack of memory, to report; null: none
  std::unique_ptr<Again> again_;              // control packet to send again; null: none
  std::unique_ptr<PartialSegments> partial_;  // null unless segments have arrived in fragments recently
  i64 progress_ns_ = 0;
  i64 fresh_ns_ = 0;    // when a new segment last arrived
  u32 stale_acks_ = 0;  // acknowledgments of duplicates since the last new segment
  u64 lost_bytes_ = 0;  // bytes that the sender reported as lost; they used credit and never arrive
  u64 remote_token_;
  u64 next_piece_seq_ = 0;  // first sequence number in the next packet of an acknowledgment that needs several
  u32 room_messages_ = 0;   // number of refused messages for which an eager block is now free; the sender must be told
  u32 remote_flow_;
  const std::shared_ptr<const Passed> passed_;  // messages completed on any flow; null: this is the home flow
  u32 flow_;
  u32 peer_;
  u16 segment_bytes_;
  u16 path_count_;
  u8 piece_path_ = 0;
  u8 last_path_ = 0;
  bool more_pieces_ = false;
  bool repeated_ = false;       // a duplicate arrived since the last acknowledgment
  bool credit_lifted_ = false;  // the credit policy was removed; the sender must be told
};

}  // namespace weft::core
