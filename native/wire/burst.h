// What passes between the core and a datapath: a burst of datagrams out, one datagram in.
// Owns header bytes only; payload stays where the caller of send() left it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/wire/wire.h"

namespace weft::wire {

inline constexpr std::size_t kMaxBurstSegments = 64;  // UDP_MAX_SEGMENTS of the oldest kernel we meet

struct Payload {
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;
  // Only datapaths that can use them look at the rest.
  std::uint32_t memory = 0;          // the registration that `data` lies in; 0: none
  std::uint32_t remote_key = 0;      // of the receive's window; 0: there is none, the payload goes in the datagram
  std::uint64_t remote_address = 0;  // where in the window
};

// Consecutive segments of one flow on one path, or one control packet.
struct TxBurst {
  std::uint32_t peer = 0;
  std::uint8_t path = 0;
  std::uint16_t count = 0;           // datagrams
  std::uint16_t header_bytes = 0;    // of each; control: the whole packet, and count is 1
  std::uint32_t datagram_bytes = 0;  // header and payload of each but the last, which may be shorter
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

// One datagram as a datapath received it. Data: `header` is kDataBytes long and the payload lies anywhere.
struct RxDatagram {
  // Where the payload of a data packet is: at `payload`; written into the window of its receive before this header
  // came; or nowhere, because that write was refused or lost, or because a full queue cut it off.
  enum class Body : std::uint8_t { here, written, missing, trimmed };
  const std::uint8_t* header = nullptr;
  std::uint32_t header_bytes = 0;
  const std::uint8_t* payload = nullptr;
  std::uint32_t payload_bytes = 0;
  bool congestion_experienced = false;
  Body body = Body::here;
  bool last_hop = false;      // trimmed: in the queue of the link to us
  std::int64_t stamp_ns = 0;  // when the kernel had it, by CLOCK_REALTIME; 0: it did not say
};

// Cuts a contiguous datagram where its header ends.
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
