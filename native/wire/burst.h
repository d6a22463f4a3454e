// The data exchanged by the core and a datapath: outgoing bursts and incoming datagrams. A burst contains its headers
// and points to its payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/wire/hop_records.h"
#include "native/wire/wire.h"

namespace weft::wire {

inline constexpr std::size_t kMaxBurstSegments = 64;  // UDP_MAX_SEGMENTS of the oldest supported kernel

struct Payload {
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;
  // Only datapaths that register memory use the fields below.
  std::uint32_t memory = 0;          // id of the registered memory that contains `data`; 0: none
  std::uint32_t remote_key = 0;      // key of the receive's memory window; 0: the payload goes in the datagram
  std::uint64_t remote_address = 0;  // where in that window the payload is written
};

// Consecutive segments of one flow on one path, or one control packet.
struct TxBurst {
  std::uint32_t peer = 0;
  std::uint8_t path = 0;
  std::uint16_t count = 0;           // number of datagrams; 1 for a control packet
  std::uint16_t header_bytes = 0;    // header size of each datagram, or the size of the control packet
  std::uint32_t datagram_bytes = 0;  // size of each datagram with header and payload; the last one may be shorter
  Payload payload[kMaxBurstSegments];
  alignas(64) std::uint8_t headers[kMaxBurstSegments * kDataBytes];

  const std::uint8_t* header(std::size_t index) const noexcept { return headers + index * kDataBytes; }
  std::uint64_t total_bytes() const noexcept {
    std::uint64_t bytes = std::uint64_t{count} * header_bytes;
    for (std::size_t i = 0; i < count; ++i) bytes += payload[i].bytes;
    return bytes;
  }
};
static_assert(sizeof(TxBurst::headers) >= kControlBytesMax);

// A received datagram. If it is a data packet, `header` is kDataBytes long, and the payload may be anywhere in memory.
struct RxDatagram {
  // Where the payload is. here: at `payload`. written: it was written into the receive's memory window before this
  // header arrived. missing: that write was refused or lost. trimmed: a full switch queue cut off the payload.
  enum class Body : std::uint8_t { here, written, missing, trimmed };
  const std::uint8_t* header = nullptr;
  std::uint32_t header_bytes = 0;
  const std::uint8_t* payload = nullptr;
  std::uint32_t payload_bytes = 0;
  bool congestion_experienced = false;
  Body body = Body::here;
  bool last_hop = false;             // for trimmed: the payload was cut off at the last link, which leads to this host
  std::int64_t stamp_ns = 0;         // the kernel's time stamp (CLOCK_REALTIME); 0: none
  const HopRecords* hops = nullptr;  // of an acknowledgment; null: none. Only simulated switches stamp segments.
};

// Splits a contiguous datagram into header and payload.
inline RxDatagram datagram_at(const std::uint8_t* at, std::size_t bytes, bool congestion_experienced) noexcept {
  const std::size_t header_bytes = header_bytes_of(at, bytes);
  RxDatagram datagram;
  datagram.header = at;
  datagram.header_bytes = static_cast<std::uint32_t>(header_bytes);
  datagram.payload = at + header_bytes;
  datagram.payload_bytes = static_cast<std::uint32_t>(bytes - header_bytes);
  datagram.congestion_experienced = congestion_experienced;
  return datagram;
}

}  // namespace weft::wire
