// The receiving half of a flow: takes segments into posted or eager buffers once, and says what it has.
// Composes window, queue, acknowledgments, adverts and credit; owns no socket and no clock.
#pragma once

#include <bitset>
#include <memory>

#include "native/core/ack_schedule.h"
#include "native/core/advertiser.h"
#include "native/core/credit_control.h"
#include "native/core/partial_segments.h"
#include "native/core/path_set.h"
#include "native/core/receive_queue.h"
#include "native/core/receive_window.h"
#include "native/wire/burst.h"

namespace weft::core {

// Segments that could not be taken and that the sender is to be told of.
struct Refusals {
  static constexpr u16 kMax = 16 * wire::kNackEntriesMax;  // a datapath hands in a megabyte before it asks for packets
  wire::NackEntry entries[kMax];
  std::bitset<kMax> bits;  // trimmed: on its last hop; no room: for want of a block
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
  // missing: the header came without its payload, and nobody knows why; trimmed: a full queue cut it off.
  // no_block, no_room: to be sent again once there is memory for it (ReceiveQueue::Placement).
  enum class Outcome : u8 { taken, duplicate, refused, missing, trimmed, bad_crc, too_long, no_block, no_room };

  // `port`: null when no credit policy is in force. `paths`: the peer's; their segment size bounds control packets.
  FlowReceiver(Shared* shared, PolicyChoice choice, CreditPort* port, u32 flow, const FlowConfig& flow_config,
               const PeerConfig& peer_config, const PathSet* paths) noexcept;
  ~FlowReceiver();
  // Another credit policy from now on, or none. False when out of memory: the old one stays.
  bool set_credit(PolicyChoice choice, CreditPort* port) noexcept;
  CreditControl* credit() noexcept { return credit_.get(); }

  Outcome on_data(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram) noexcept;
  Status post(i64 now_ns, u64 message, u8* data, u64 capacity_bytes, u32 key, ReceiveTicket* ticket,
              Stage* stage) noexcept;
  void on_advert_ack(i64 now_ns, const wire::AdvertAck& ack) noexcept {
    on_confirm(now_ns, expand32(queue_.posted(), ack.posted_messages));
  }
  // As a sender's: here what is waited for is that the sender knows of the receives. What it sends is its own business.
  i64 progress_ns() const noexcept { return progress_ns_; }
  i64 stuck_since_ns() const noexcept { return advertiser_.unanswered() ? progress_ns_ : kNever; }
  void on_demand(i64 now_ns, u8 path, const wire::Demand& demand) noexcept;
  void on_timer(i64 now_ns) noexcept;
  i64 poll_timeout() const noexcept;
  i64 ack_ns() const noexcept { return acks_.poll_timeout(); }  // when a waiting acknowledgment has waited enough

  // One acknowledgment or advertisement into `out`; false when nothing is owed. `usable_path`: a path in use, if any.
  bool poll_transmit(i64 now_ns, u8 usable_path, i64 rto_ns, TxBurst* out) noexcept;
  bool due(i64 now_ns) const noexcept {
    return acks_.due(now_ns) || more_pieces_ || advertiser_.due() || trims_ != nullptr || unroomed_ != nullptr ||
           room_messages_ != 0 || queue_.room_due() || again_ != nullptr;
  }
  // There is a block for one more message that was refused; the sender is to be told.
  void offer_room() noexcept { ++room_messages_; }
  bool wants_block() const noexcept { return queue_.wants_block(); }
  u64 eager_held() const noexcept { return queue_.eager_held(); }
  // A copier has emptied more of a ring.
  void on_emptied() noexcept { queue_.on_emptied(); }
  bool room_due() const noexcept { return queue_.room_due(); }

  void prefetch(u8 path) const noexcept { acks_.prefetch(path); }
  u64 cumulative_seq() const noexcept { return window_.cumulative_seq(); }
  u64 posted() const noexcept { return queue_.posted(); }
  bool waits() const noexcept { return queue_.pending(); }
  bool awaits() const noexcept { return queue_.awaits(); }
  void forget_elsewhere() noexcept { queue_.forget_elsewhere(); }
  u64 held() const noexcept { return queue_.held(); }
  void release_idle() noexcept {
    acks_.release();
    partial_.reset();
  }
  const FlowCells& counters() const noexcept { return *counters_; }
  std::size_t bytes_held() const noexcept {
    return acks_.bytes_held() + (partial_ == nullptr ? 0 : partial_->bytes_held());
  }

 private:
  Outcome on_again(u8 path) noexcept;
  Outcome on_placed(i64 now_ns, const wire::Packet& packet, u64 message, u64 bytes, bool marked, bool whole) noexcept;
  Outcome on_fragment(i64 now_ns, const wire::Packet& packet, const RxDatagram& datagram, u64 message) noexcept;
  Outcome on_not_placed(const wire::Data& data, u8 path, ReceiveQueue::Placement placement) noexcept;
  // The longest control packet that gets through.
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
    if (confirmed > advertiser_.confirmed() && confirmed <= queue_.posted()) progress_ns_ = now_ns;
    advertiser_.on_confirm(confirmed);
  }
  void say_again(const TxBurst& said, u32 tries) noexcept;
  bool poll_refusals(TxBurst* out) noexcept;
  void write_ack(i64 now_ns, u8 path, TxBurst* out) noexcept;
  void write_advert(i64 now_ns, u8 path, i64 rto_ns, TxBurst* out) noexcept;
  wire::Common common(u8 path) const noexcept;
  // A flow that only receives learns nothing about its sending direction: the path that data came over is the best
  // guess.
  u8 reply_path(u8 heard, u8 usable_path) const noexcept { return paths_->path(heard).usable ? heard : usable_path; }

  // What was said and seems not to get through goes over several paths at once.
  struct Again {
    u8 packet[wire::kControlBytesMax];
    u16 bytes;
    u8 left;
  };
  static constexpr u32 kTriesAlone = 4;  // before that; and copies beyond the last, at most
  static constexpr u8 kCopiesMax = 7;
  static constexpr i64 kStaleTimeouts = 50;  // least ones: an acknowledgment that long without news may not get through
  static constexpr u64 kControlBytesLeast = 440;  // 17 receives: one more than are said again; UD has 512

  Shared* shared_;
  const PathSet* paths_;
  FlowCells* counters_;
  ReceiveWindow window_;
  ReceiveQueue queue_;
  AckSchedule acks_;
  Advertiser advertiser_;
  std::unique_ptr<CreditControl> credit_;     // only when a credit policy is in force
  std::unique_ptr<Refusals> trims_;           // only while there is one to report
  std::unique_ptr<Refusals> unroomed_;        // the same
  std::unique_ptr<Again> again_;              // the same
  std::unique_ptr<PartialSegments> partial_;  // only where segments come in fragments, and a while after
  i64 progress_ns_ = 0;
  i64 fresh_ns_ = 0;    // when a segment last came that was new
  u32 stale_acks_ = 0;  // acknowledgments since then that answered repeated segments
  u64 lost_bytes_ = 0;  // as the sender says: they take credit, and never arrive
  u64 remote_token_;
  u64 next_piece_seq_ = 0;  // base of the next piece of an acknowledgment that takes several
  u32 room_messages_ = 0;  // of those refused for want of a block: so many may come again, and the sender is to hear it
  u32 remote_flow_;
  u32 flow_;
  u32 peer_;
  u16 segment_bytes_;
  u16 path_count_;
  u8 piece_path_ = 0;
  u8 last_path_ = 0;
  bool more_pieces_ = false;
  bool repeated_ = false;       // a segment came again since the last acknowledgment
  bool credit_lifted_ = false;  // a sender that was limited is to be so no more
};

}  // namespace weft::core
