// The byte layout of every packet, its encoders and its decoder. docs/PROTOCOL.md has the diagrams.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr std::uint16_t kMagic = 0x4657;  // "WF" in memory order
inline constexpr std::uint8_t kVersion = 3;

// Packets are little-endian, and every field is naturally aligned from the start of the packet.
inline constexpr std::size_t kCommonBytes = 24;
inline constexpr std::size_t kDataBytes = 64;

// Payload sizes are multiples of 8 bytes. A reader that polls the receive buffer for 8-byte flags (NCCL's LL protocol)
// must never see half of a flag change before the other half, which would arrive with a later segment.
constexpr std::uint16_t segment_payload_bytes(std::size_t segment_bytes) noexcept {
  return static_cast<std::uint16_t>((segment_bytes - kDataBytes) & ~std::size_t{7});
}
inline constexpr std::size_t kAckFixedBytes = 64;
inline constexpr std::size_t kAckReportBytes = 24;
inline constexpr std::size_t kAdvertFixedBytes = 32;
inline constexpr std::size_t kAdvertEntryBytes = 24;
inline constexpr std::size_t kAdvertAckBytes = 32;
inline constexpr std::size_t kProbeBytes = 40;
inline constexpr std::size_t kCloseBytes = 40;
inline constexpr std::size_t kDemandBytes = 40;
inline constexpr std::size_t kNackFixedBytes = 48;
inline constexpr std::size_t kNackEntryBytes = 16;
// Size limit of all control packets: IPv6's smallest path MTU minus the IPv6 and UDP headers.
inline constexpr std::size_t kControlBytesMax = 1280 - 48;
// 64-bit words in the bitmap of one acknowledgment: 7,680 segments. A wider window takes several acknowledgments.
inline constexpr std::size_t kAckWordsMax = 120;
inline constexpr std::size_t kAckReportsMax = 8;  // paths reported in one acknowledgment; more paths take several
inline constexpr std::size_t kAdvertEntriesMax = 48;
inline constexpr std::size_t kNackEntriesMax = 64;
static_assert(kAckFixedBytes + kAckReportBytes * kAckReportsMax + 8 * kAckWordsMax <= kControlBytesMax);
static_assert(kAdvertFixedBytes + kAdvertEntryBytes * kAdvertEntriesMax <= kControlBytesMax);
static_assert(kNackFixedBytes + kNackEntryBytes * kNackEntriesMax <= kControlBytesMax);

// Limits the bitmap so that an acknowledgment is no longer than a segment: UD queue pairs can't send more, and where
// the search for the largest datagram that gets through has made segments shorter, longer packets would be lost.
constexpr std::size_t ack_words_max(std::size_t segment_bytes) noexcept {
  constexpr std::size_t kOthersBytes = kAckFixedBytes + kAckReportBytes * kAckReportsMax, kSegmentBytesMin = 440;
  const std::size_t fits = ((segment_bytes > kSegmentBytesMin ? segment_bytes : kSegmentBytesMin) - kOthersBytes) / 8;
  return fits < kAckWordsMax ? fits : kAckWordsMax;
}
static_assert(ack_words_max(512) == 32 && ack_words_max(1024) == 96 && ack_words_max(1472) == kAckWordsMax);

enum class Type : std::uint8_t {
  data = 1,
  ack = 2,
  advert = 3,
  advert_ack = 4,
  probe = 5,
  probe_reply = 6,
  close = 7,
  close_ack = 8,
  demand = 9,
  nack = 10,
};

// The header common to all packets. `token` and `flow` are the receiver's token and index for the flow; in probes,
// those for the peer.
struct Common {
  std::uint64_t token = 0;
  std::uint32_t flow = 0;
  Type type = Type::data;
  std::uint8_t path = 0;
  std::uint8_t flags = 0;
  std::uint16_t body_bytes = 0;  // in a data packet: payload bytes; in others: bytes after the common header
};

inline constexpr std::uint8_t kFlagPayloadCrc = 0x01;  // in a data packet: the receiver must check payload_crc
// In an acknowledgment: the bitmap is truncated, and segments beyond it may have arrived.
inline constexpr std::uint8_t kFlagCutShort = 0x02;

struct Data {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // send time by the sender's clock; the receiver only echoes it
  std::uint32_t message = 0;
  std::uint32_t payload_crc = 0;
  // Offset of the payload in the whole message. It has 48 bits on the wire, like message_bytes.
  std::uint64_t offset_bytes = 0;
  std::uint64_t message_bytes = 0;
  // A segment that is too long for its path is sent as fragments, which all carry the segment's number, the fragment's
  // offset in the segment, and the segment's size. Both fields are 0 for a whole segment.
  std::uint16_t fragment_offset = 0;
  std::uint16_t segment_bytes = 0;
};

// What an acknowledgment reports about one path. Its counts are cumulative.
struct PathReport {
  std::int64_t echo_sent_ns = 0;  // the newest sent_ns received over the path
  // How long the receiver held the segment whose send time is echoed, including the time in its socket; at most the
  // largest value of the field.
  std::uint32_t ack_delay_ns = 0;
  std::uint32_t segments = 0;      // segments received over the path, modulo 2^32
  std::uint32_t ecn_segments = 0;  // segments with an ECN mark received over the path, modulo 2^32
  std::uint8_t path = 0;
  // The part of ack_delay_ns in which the receiver's thread did not run, in steps of 2^14 ns; limited by the field's
  // size.
  std::uint32_t away_ns = 0;
};

struct Ack {
  std::uint64_t cumulative_seq = 0;  // all segments below this number have arrived
  std::uint64_t base_seq = 0;        // sequence number of bit 0 of the bitmap
  std::uint64_t received_bytes = 0;  // distinct payload bytes of the flow that were received
  std::uint64_t granted_bytes = 0;   // cumulative bytes of credit granted; ~0: credit does not limit the sender
  // Duplicates that the flow has received, modulo 2^32; they reveal spurious retransmissions (as in RFC 2883).
  std::uint32_t duplicate_segments = 0;
  std::uint16_t bitmap_words = 0;
  std::uint8_t report_count = 0;
  const std::uint8_t* reports = nullptr;  // set by the decoder: points into the packet
  // Set by the decoder: points into the packet, unaligned. 64-bit words; bit i is for segment base_seq + i.
  const std::uint8_t* bitmap = nullptr;
  PathReport report(std::size_t index) const noexcept;
};

struct AdvertEntry {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t address = 0;  // address of the receive's buffer; used only by datapaths that write into remote memory
  std::uint32_t key = 0;
};

struct Advert {
  std::uint32_t first_message = 0;
  std::uint16_t count = 0;
  const std::uint8_t* entries = nullptr;  // set by the decoder: points into the packet
  AdvertEntry entry(std::size_t index) const noexcept;
};

struct AdvertAck {
  std::uint32_t posted_messages = 0;  // the advertisements of all messages below this number have arrived
};

struct Probe {
  std::uint64_t probe_id = 0;
  std::int64_t sent_ns = 0;
};

struct Close {
  std::uint32_t reason = 0;          // a weft::Status
  std::uint64_t cumulative_seq = 0;  // segments below this number have arrived, even if acknowledgments were lost
};

struct Demand {
  // Cumulative bytes that the sender wants to send, including lost segments to be sent again.
  std::uint64_t demand_bytes = 0;
  std::uint64_t lost_bytes = 0;  // cumulative bytes that the sender considers lost
};

// A segment that the receiver could not take: a switch had cut off its payload, or there was no room for it.
struct NackEntry {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // from the segment's header; tells which transmission of the segment is meant
};

struct Nack {
  enum class Kind : std::uint16_t {
    trimmed = 0,  // the segments arrived without their payload
    // The segments are intact, but there is no memory for them; the sender must wait for `room` or `stage_room`.
    no_room = 1,
    room = 2,        // `detail` messages that wait for eager blocks may be sent now
    stage_room = 3,  // the bounce buffer of one message has room up to the offset `detail`
  };
  std::uint64_t granted_bytes = 0;  // cumulative bytes of credit granted, as in an acknowledgment
  // Depends on the kind. trimmed: bit i is set if entry i was cut on the last hop, whatever its path. no_room: bit i is
  // set if entry i lacked an eager block, and not set if the bounce buffer of its message was full. room: number of
  // messages. stage_room: end of the room, as an offset in the message.
  std::uint64_t detail = 0;
  std::uint16_t count = 0;  // number of entries (refused segments); 0 in the kinds room and stage_room
  Kind kind = Kind::trimmed;
  std::uint32_t message = 0;              // for stage_room: the message's number, low 32 bits
  const std::uint8_t* entries = nullptr;  // set by the decoder: points into the packet
  NackEntry entry(std::size_t index) const noexcept;
};

// Encoders write a whole packet (of a data packet only the header) with its CRC, and return the number of bytes
// written.
std::size_t encode_data(std::uint8_t* out, const Common& common, const Data& data) noexcept;
std::size_t encode_ack(std::uint8_t* out, const Common& common, const Ack& ack, const PathReport* reports,
                       const std::uint64_t* words) noexcept;
std::size_t encode_advert(std::uint8_t* out, const Common& common, std::uint32_t first_message,
                          const AdvertEntry* entries, std::size_t count) noexcept;
std::size_t encode_advert_ack(std::uint8_t* out, const Common& common, const AdvertAck& ack) noexcept;
// Encodes a probe or its reply. The caller will add `padding_bytes` after the bytes written here.
std::size_t encode_probe(std::uint8_t* out, const Common& common, const Probe& probe,
                         std::size_t padding_bytes = 0) noexcept;
// Encodes a close or a close_ack.
std::size_t encode_close(std::uint8_t* out, const Common& common, const Close& close) noexcept;
std::size_t encode_demand(std::uint8_t* out, const Common& common, const Demand& demand) noexcept;
std::size_t encode_nack(std::uint8_t* out, const Common& common, const Nack& nack, const NackEntry* entries) noexcept;

// Changes the path of an encoded control packet.
void set_path(std::uint8_t* packet, std::size_t bytes, std::uint8_t path) noexcept;

enum class Verdict : std::uint8_t { ok, too_short, bad_magic, bad_version, bad_type, bad_length, bad_crc };

struct Packet {
  Common common;
  union {
    Data data;
    Ack ack;
    Advert advert;
    AdvertAck advert_ack;
    Probe probe;
    Close close;
    Demand demand;
    Nack nack;
  };
  Packet() noexcept : data() {}
};

// Returns how many bytes of a datagram are its header, according to the type that it claims; nothing is checked yet.
// For data and padded probes the rest is payload or padding; other packets have no rest.
inline std::size_t header_bytes_of(const std::uint8_t* at, std::size_t bytes) noexcept {
  if (bytes >= kDataBytes && at[3] == static_cast<std::uint8_t>(Type::data)) return kDataBytes;
  return bytes > kProbeBytes && at[3] == static_cast<std::uint8_t>(Type::probe) ? kProbeBytes : bytes;
}

// The payload size that a data header claims; nothing is checked yet. 0 if the datagram is too short to have the field.
inline std::uint32_t claimed_body_bytes(const std::uint8_t* header, std::size_t bytes) noexcept {
  return bytes >= kCommonBytes ? static_cast<std::uint32_t>(header[22] | header[23] << 8) : 0;
}

// The flow and paths that a packet claims to be about, for prefetching: nothing is checked yet. An acknowledgment is
// about each path that it reports on.
inline std::uint32_t claimed_flow(const std::uint8_t* header) noexcept {
  return std::uint32_t{header[16]} | std::uint32_t{header[17]} << 8 | std::uint32_t{header[18]} << 16 |
         std::uint32_t{header[19]} << 24;
}
template <class Use>
void each_claimed_path(const std::uint8_t* header, std::size_t bytes, Use use) noexcept {
  use(header[20]);
  if (header[3] != static_cast<std::uint8_t>(Type::ack)) return;
  for (std::size_t at = kAckFixedBytes; at + kAckReportBytes <= bytes; at += kAckReportBytes) use(header[at + 20]);
}

// Decodes a packet. It checks length, magic, version, type and CRC before it uses any other field. `payload_bytes`:
// number of bytes after the header of a data packet or padded probe.
Verdict decode(const std::uint8_t* header, std::size_t header_bytes, std::size_t payload_bytes, Packet* out) noexcept;

}  // namespace weft::wire
