// In-band network telemetry: what the switch ports on the way of a segment stamped into it. The acknowledgment that
// echoes the segment's send time brings it back to the sender.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

// The state of an egress port at the moment when it begins to send the segment.
struct HopRecord {
  std::int64_t queue_bytes = 0;       // queued behind the segment
  std::int64_t tx_bytes = 0;          // sent by the port before the segment, since the beginning
  std::int64_t timestamp_ns = 0;      // that moment, on the port's clock
  std::int64_t link_bytes_per_s = 0;  // the port's rate
};

struct HopRecords {
  static constexpr std::size_t kMax = 8;  // ports after the eighth stamp nothing

  HopRecords* next = nullptr;    // in an acknowledgment: those of another path that it reports
  std::int64_t sent_ns = 0;      // send time of the segment
  std::int64_t received_ns = 0;  // when the receiver got it, on a clock that runs like the sender's; 0: unknown
  std::uint8_t path = 0;
  std::uint8_t count = 0;
  HopRecord hops[kMax];

  void add(const HopRecord& hop) noexcept {
    if (count < kMax) hops[count++] = hop;
  }
};

// The records of the segment that a report of an acknowledgment echoes; null: there are none.
inline const HopRecords* find_hops(const HopRecords* first, std::uint8_t path, std::int64_t sent_ns) noexcept {
  while (first != nullptr && (first->path != path || first->sent_ns != sent_ns)) first = first->next;
  return first;
}

}  // namespace weft::wire
