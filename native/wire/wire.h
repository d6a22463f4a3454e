// The byte layout of every packet, its encoders and its decoder. docs/PROTOCOL.md has the diagrams.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr std::uint16_t kMagic = 0x4657;  // "WF" in memory order
inline constexpr std::uint8_t kVersion = 3;

// The wire is little-endian, and every multi-byte field is naturally aligned from the start of the packet.
inline constexpr std::size_t kCommonBytes = 24;
inline constexpr std::size_t kDataBytes = 64;

// Payloads are whole 8-byte words: a reader that polls the buffer for 8-byte flags (NCCL's LL protocol) must never see
// half of a word change before the other half, which would arrive with a later segment.
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
// Upper limit of all control packets: IPv6's smallest path MTU less the IPv6 and UDP headers.
inline constexpr std::size_t kControlBytesMax = 1280 - 48;
inline constexpr std::size_t kAckWordsMax = 120;  // 7,680 segments; a wider window takes several acknowledgments
inline constexpr std::size_t kAckReportsMax = 8;  // reported paths; more of them take several acknowledgments
inline constexpr std::size_t kAdvertEntriesMax = 48;
inline constexpr std::size_t kNackEntriesMax = 64;
static_assert(kAckFixedBytes + kAckReportBytes * kAckReportsMax + 8 * kAckWordsMax <= kControlBytesMax);
static_assert(kAdvertFixedBytes + kAdvertEntryBytes * kAdvertEntriesMax <= kControlBytesMax);
static_assert(kNackFixedBytes + kNackEntryBytes * kNackEntriesMax <= kControlBytesMax);

// Limits the bitmap so that an acknowledgment is no longer than a segment: UD queue pairs can't send more, and longer
// packets do not get through where the size search has reduced segments.
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

// The common header. `token` and `flow` are the receiver's token and index for the flow (in probes, for the peer).
struct Common {
  std::uint64_t token = 0;
  std::uint32_t flow = 0;
  Type type = Type::data;
  std::uint8_t path = 0;
  std::uint8_t flags = 0;
  std::uint16_t body_bytes = 0;  // data: payload bytes; otherwise bytes after the common header
};

inline constexpr std::uint8_t kFlagPayloadCrc = 0x01;  // data: the receiver must check payload_crc
inline constexpr std::uint8_t kFlagCutShort = 0x02;    // ack: truncated bitmap; segments beyond it may have arrived

struct Data {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // sender's clock; the receiver only echoes it
  std::uint32_t message = 0;
  std::uint32_t payload_crc = 0;
  std::uint64_t offset_bytes = 0;  // within the whole message; 48 bits on the wire, like message_bytes
  std::uint64_t message_bytes = 0;
  // A segment that is too long for its path is sent as fragments, all with the segment's number: the fragment's offset
  // in the segment, and the segment's size. Both 0: the whole segment.
  std::uint16_t fragment_offset = 0;
  std::uint16_t segment_bytes = 0;
};

// What an acknowledgment reports about one path. The counts are cumulative.
struct PathReport {
  std::int64_t echo_sent_ns = 0;   // newest sent_ns received over the path
  std::uint32_t ack_delay_ns = 0;  // how long the receiver held it, including its socket; saturates
  std::uint32_t segments = 0;      // received over the path, modulo 2^32
  std::uint32_t ecn_segments = 0;  // those with an ECN mark, modulo 2^32
  std::uint8_t path = 0;
  // The part of ack_delay_ns in which the receiver's thread did not run; in steps of 2^14 ns, saturates.
  std::uint32_t away_ns = 0;
};

struct Ack {
  std::uint64_t cumulative_seq = 0;      // all segments below have arrived
  std::uint64_t base_seq = 0;            // sequence number of bit 0 of the bitmap
  std::uint64_t received_bytes = 0;      // distinct payload bytes of the flow
  std::uint64_t granted_bytes = 0;       // cumulative bytes of credit granted; ~0: no credit limit is in force
  std::uint32_t duplicate_segments = 0;  // of the flow, modulo 2^32; reveals spurious resends (as in RFC 2883)
  std::uint16_t bitmap_words = 0;
  std::uint8_t report_count = 0;
  const std::uint8_t* reports = nullptr;  // decoded: points into the packet
  const std::uint8_t* bitmap = nullptr;   // decoded: in the packet, unaligned; 64-bit words, bit i is base_seq + i
  PathReport report(std::size_t index) const noexcept;
};

struct AdvertEntry {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t address = 0;  // used by one-sided datapaths only
  std::uint32_t key = 0;
};

struct Advert {
  std::uint32_t first_message = 0;
  std::uint16_t count = 0;
  const std::uint8_t* entries = nullptr;  // decoded: points into the packet
  AdvertEntry entry(std::size_t index) const noexcept;
};

struct AdvertAck {
  std::uint32_t posted_messages = 0;  // the advertisements of all messages below are known
};

struct Probe {
  std::uint64_t probe_id = 0;
  std::int64_t sent_ns = 0;
};

struct Close {
  std::uint32_t reason = 0;          // a weft::Status
  std::uint64_t cumulative_seq = 0;  // all segments below have arrived, even if the acknowledgment was lost
};

struct Demand {
  std::uint64_t demand_bytes = 0;  // cumulative bytes that the sender wants to send, resends of lost segments included
  std::uint64_t lost_bytes = 0;    // cumulative bytes that it considers lost
};

// A segment that the receiver could not take: a switch had cut its payload off, or there was no room for it.
struct NackEntry {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // from the header; identifies the copy
};

struct Nack {
  enum class Kind : std::uint16_t {
    trimmed = 0,     // the segments arrived without their payload
    no_room = 1,     // the segments are intact but there is no memory for them; the sender must wait for news of room
    room = 2,        // `detail` messages that wait for eager blocks may be sent
    stage_room = 3,  // the bounce buffer of one message has room up to `detail`
  };
  std::uint64_t granted_bytes = 0;  // as in an acknowledgment
  // trimmed: bit i: entry i was cut on the last hop, whatever path it took. no_room: bit i: entry i lacked an eager
  // block; otherwise the bounce buffer of its message was full. room: number of messages. stage_room: end of the room,
  // as an offset in the message.
  std::uint64_t detail = 0;
  std::uint16_t count = 0;  // 0 for room and stage_room
  Kind kind = Kind::trimmed;
  std::uint32_t message = 0;              // stage_room: the message's number, low 32 bits
  const std::uint8_t* entries = nullptr;  // decoded: points into the packet
  NackEntry entry(std::size_t index) const noexcept;
};

// Encoders write the whole packet (data: only its header) with its CRC, and return the number of bytes written.
std::size_t encode_data(std::uint8_t* out, const Common& common, const Data& data) noexcept;
std::size_t encode_ack(std::uint8_t* out, const Common& common, const Ack& ack, const PathReport* reports,
                       const std::uint64_t* words) noexcept;
std::size_t encode_advert(std::uint8_t* out, const Common& common, std::uint32_t first_message,
                          const AdvertEntry* entries, std::size_t count) noexcept;
std::size_t encode_advert_ack(std::uint8_t* out, const Common& common, const AdvertAck& ack) noexcept;
// Encodes probes and replies. `padding_bytes` will follow the bytes written here.
std::size_t encode_probe(std::uint8_t* out, const Common& common, const Probe& probe,
                         std::size_t padding_bytes = 0) noexcept;
std::size_t encode_close(std::uint8_t* out, const Common& common, const Close& close) noexcept;  // or close_ack
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

// Splits a datagram by its claimed type, before any check: the number of header bytes for data and padded probes (whose
// padding has no meaning), all bytes for other packets.
inline std::size_t header_bytes_of(const std::uint8_t* at, std::size_t bytes) noexcept {
  if (bytes >= kDataBytes && at[3] == static_cast<std::uint8_t>(Type::data)) return kDataBytes;
  return bytes > kProbeBytes && at[3] == static_cast<std::uint8_t>(Type::probe) ? kProbeBytes : bytes;
}

// The payload size that a data header claims, before any check; 0 if the datagram is too short to have the field.
inline std::uint32_t claimed_body_bytes(const std::uint8_t* header, std::size_t bytes) noexcept {
  return bytes >= kCommonBytes ? static_cast<std::uint32_t>(header[22] | header[23] << 8) : 0;
}

// Checks length, magic, version, type and CRC before it uses any other field. `payload_bytes`: size of the bytes after
// the header of a data packet or padded probe.
Verdict decode(const std::uint8_t* header, std::size_t header_bytes, std::size_t payload_bytes, Packet* out) noexcept;

}  // namespace weft::wire
