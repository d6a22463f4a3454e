// Keeps the flow's segments in a ring over its window, indexed by sequence number (each flow starts at zero). It reads
// acknowledgments as a sender does: first the cumulative position, then the bitmap.
#include "native/sim/wire_ledger.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::sim {

WireLedger::Sent WireLedger::on_sent(u64 seq, u64 payload_bytes) noexcept {
  if (seq == end_ && end_ - begin_ < core::kWindowSegments) {
    at(seq) = {static_cast<u16>(payload_bytes), 0, false};
    unacked_bytes_ += static_cast<i64>(payload_bytes);
    ++end_;
    return Sent::first;
  }
  if (seq >= end_) return Sent::foreign;
  ++copies_;
  copies_max_ = std::max(copies_max_, i64{++at(seq).copies});
  return seq < begin_ || at(seq).acked ? Sent::needless : Sent::copy;
}

void WireLedger::acknowledge(u64 seq) noexcept {
  Segment& segment = at(seq);
  if (segment.acked) return;
  segment.acked = true;
  unacked_bytes_ -= segment.payload_bytes;
}

bool WireLedger::on_ack(const wire::Ack& ack) noexcept {
  if (ack.cumulative_seq > end_) return false;
  for (u64 seq = begin_; seq < ack.cumulative_seq; ++seq) acknowledge(seq);
  for (std::size_t word = 0; word < ack.bitmap_words; ++word) {
    u64 bits;
    std::memcpy(&bits, ack.bitmap + 8 * word, 8);
    for (; bits != 0; bits &= bits - 1) {
      const u64 seq = ack.base_seq + 64 * word + static_cast<u64>(std::countr_zero(bits));
      if (seq >= end_) return false;
      if (seq >= begin_) acknowledge(seq);
    }
  }
  begin_ = std::max(begin_, ack.cumulative_seq);
  return true;
}

}  // namespace weft::sim
