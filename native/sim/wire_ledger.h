// Counts a flow's bytes in flight from its packets on the wire (segments out, acknowledgments in). The count is
// independent of the core's, so that the two can be compared.
#pragma once

#include <vector>

#include "native/core/types.h"

namespace weft::sim {

using core::i64;
using core::u16;
using core::u64;
using core::u8;

class WireLedger {
 public:
  WireLedger() : segments_(core::kWindowSegments) {}

  // What a sent segment is. copy: a retransmission. needless: a retransmission although the segment had been
  // acknowledged. foreign: its sequence number is out of order.
  enum class Sent : u8 { first, copy, needless, foreign };
  Sent on_sent(u64 seq, u64 payload_bytes) noexcept;
  // Handles an acknowledgment. Returns false if it acknowledges a segment that was not sent.
  bool on_ack(const wire::Ack& ack) noexcept;

  // Bytes sent and not acknowledged. They include lost segments, because only the core can declare segments lost.
  i64 unacked_bytes() const noexcept { return unacked_bytes_; }
  u64 first_copies() const noexcept { return end_; }
  i64 copies() const noexcept { return copies_; }
  i64 copies_max() const noexcept { return copies_max_; }  // largest number of retransmissions of one segment

 private:
  struct Segment {
    u16 payload_bytes = 0;
    u16 copies = 0;
    bool acked = true;
  };
  Segment& at(u64 seq) noexcept { return segments_[seq % core::kWindowSegments]; }
  void acknowledge(u64 seq) noexcept;

  std::vector<Segment> segments_;
  u64 begin_ = 0;  // all segments below this number are acknowledged
  u64 end_ = 0;    // 1 + the highest sequence number sent
  i64 unacked_bytes_ = 0;
  i64 copies_ = 0, copies_max_ = 0;
};

}  // namespace weft::sim
