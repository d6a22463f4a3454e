// What the core hands to a datapath: consecutive segments of one flow on one path, or one control packet.
// Owns its header bytes; payload stays where the caller of send() left it.
#pragma once

#include "native/core/types.h"

namespace weft::core {

struct Payload {
  const u8* data = nullptr;
  u32 bytes = 0;
};

struct TxBurst {
  u32 peer = kNone;
  u8 path = 0;
  u16 count = 0;            // datagrams
  u16 header_bytes = 0;     // of each; control: the whole packet, count is 1
  u32 datagram_bytes = 0;   // header and payload of each but the last, which may be shorter
  Payload payload[kMaxBurstSegments];
  alignas(64) u8 headers[kMaxBurstSegments * wire::kDataBytes];

  const u8* header(std::size_t index) const noexcept { return headers + index * wire::kDataBytes; }
  u64 total_bytes() const noexcept {
    u64 bytes = u64{count} * header_bytes;
    for (std::size_t i = 0; i < count; ++i) bytes += payload[i].bytes;
    return bytes;
  }
};
static_assert(sizeof(TxBurst::headers) >= wire::kControlBytesMax);

// One datagram as a datapath received it. Data: `header` is kDataBytes long and the payload lies anywhere.
struct RxDatagram {
  const u8* header = nullptr;
  u32 header_bytes = 0;
  const u8* payload = nullptr;
  u32 payload_bytes = 0;
  bool congestion_experienced = false;
};

}  // namespace weft::core
