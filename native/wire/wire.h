// The byte layout of every packet, in one place: what PROTOCOL.md draws.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr std::uint16_t kMagic = 0x4657;  // "WF" in memory order
inline constexpr std::uint8_t kVersion = 3;

// Little-endian on the wire; every multi-byte field is naturally aligned from the start of the packet.
inline constexpr std::size_t kCommonBytes = 24;
inline constexpr std::size_t kDataBytes = 64;

// Whole words of eight bytes: a reader that polls the buffer for 8-byte flags (NCCL's LL protocol) must never see one
// half of a word from a later segment before the other half.
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
// No control packet is larger: it fits IPv6's smallest path MTU with room to spare.
inline constexpr std::size_t kControlBytesMax = 1280 - 48;
inline constexpr std::size_t kAckWordsMax = 120;  // 7,680 segments; a wider window takes several acknowledgments
inline constexpr std::size_t kAckReportsMax = 8;  // paths; more of them take several acknowledgments too
inline constexpr std::size_t kAdvertEntriesMax = 48;
inline constexpr std::size_t kNackEntriesMax = 64;
static_assert(kAckFixedBytes + kAckReportBytes * kAckReportsMax + 8 * kAckWordsMax <= kControlBytesMax);
static_assert(kAdvertFixedBytes + kAdvertEntryBytes * kAdvertEntriesMax <= kControlBytesMax);
static_assert(kNackFixedBytes + kNackEntryBytes * kNackEntriesMax <= kControlBytesMax);

// Nothing longer than a segment can be sent over UD, or gets through where segments have been made short.
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

// What every packet begins with. `token` and `flow` are the receiver's own words for the flow (or, in probes, the
// peer).
struct Common {
  std::uint64_t token = 0;
  std::uint32_t flow = 0;
  Type type = Type::data;
  std::uint8_t path = 0;
  std::uint8_t flags = 0;
  std::uint16_t body_bytes = 0;  // data: payload bytes; otherwise bytes after the common header
};

inline constexpr std::uint8_t kFlagPayloadCrc = 0x01;  // data: payload_crc is to be checked
inline constexpr std::uint8_t kFlagCutShort = 0x02;    // ack: more may have arrived beyond the bitmap

struct Data {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // sender's clock; only echoed
  std::uint32_t message = 0;
  std::uint32_t payload_crc = 0;
  std::uint64_t offset_bytes = 0;  // within the whole message; 48 bits on the wire, as message_bytes
  std::uint64_t message_bytes = 0;
  // A segment that its path does not carry whole goes as fragments, each with the segment's number: where this one lies
  // in the segment, and how long all of it is. Both 0: this is all of it.
  std::uint16_t fragment_offset = 0;
  std::uint16_t segment_bytes = 0;
};

// What an acknowledgment says of one path since it last spoke of it.
struct PathReport {
  std::int64_t echo_sent_ns = 0;   // newest sent_ns seen on the path
  std::uint32_t ack_delay_ns = 0;  // how long the receiver had it, its socket included; saturates
  std::uint32_t segments = 0;      // received on the path, modulo 2^32
  std::uint32_t ecn_segments = 0;  // of these, marked
  std::uint8_t path = 0;
  // Of ack_delay_ns, how long the receiver's thread did not run; in steps of 2^14, saturates.
  std::uint32_t away_ns = 0;
};

struct Ack {
  std::uint64_t cumulative_seq = 0;      // everything below has arrived
  std::uint64_t base_seq = 0;            // bit 0 of the bitmap
  std::uint64_t received_bytes = 0;      // distinct payload bytes of the flow
  std::uint64_t granted_bytes = 0;       // credit: cumulative bytes that may be sent; ~0 when no credit is in force
  std::uint32_t duplicate_segments = 0;  // of the flow, modulo 2^32: tells needless resends (as RFC 2883 does)
  std::uint16_t bitmap_words = 0;
  std::uint8_t report_count = 0;
  const std::uint8_t* reports = nullptr;  // decode: into the packet
  const std::uint8_t* bitmap = nullptr;   // decode: into the packet, unaligned; 8 bytes a word, bit i = base_seq + i
  PathReport report(std::size_t index) const noexcept;
};

struct AdvertEntry {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t address = 0;  // one-sided datapaths only
  std::uint32_t key = 0;
};

struct Advert {
  std::uint32_t first_message = 0;
  std::uint16_t count = 0;
  const std::uint8_t* entries = nullptr;  // decode: into the packet
  AdvertEntry entry(std::size_t index) const noexcept;
};

struct AdvertAck {
  std::uint32_t posted_messages = 0;  // advertisements of all messages below are known
};

struct Probe {
  std::uint64_t probe_id = 0;
  std::int64_t sent_ns = 0;
};

struct Close {
  std::uint32_t reason = 0;          // a weft::Status
  std::uint64_t cumulative_seq = 0;  // everything below has arrived: the last acknowledgment may have been lost
};

struct Demand {
  std::uint64_t demand_bytes = 0;  // cumulative bytes the sender would send, copies of what it takes for lost included
  std::uint64_t lost_bytes = 0;    // cumulative bytes that it takes for lost
};

// A segment that the receiver could not take: the network had cut its payload off, or there was no room for it.
struct NackEntry {
  std::uint64_t seq = 0;
  std::int64_t sent_ns = 0;  // as it was in the header: which copy it was
};

struct Nack {
  enum class Kind : std::uint16_t {
    trimmed = 0,     // the segments came without their payload
    no_room = 1,     // they came whole, and there is no memory to put them in: they are to wait for word of room
    room = 2,        // word of it, for messages that go before their receives: so many of those that wait may go
    stage_room = 3,  // word of it, for one message: so many of its bytes may go
  };
  std::uint64_t granted_bytes = 0;  // as in an acknowledgment
  // trimmed: bit i: entry i was cut on its last link, whatever path it took. no_room: bit i: entry i found no block to
  // wait in for its receive; else no room in the ring that its message passes through. room: messages. stage_room: the
  // end of the room, in bytes from the message's begin.
  std::uint64_t detail = 0;
  std::uint16_t count = 0;  // 0 in a word of room
  Kind kind = Kind::trimmed;
  std::uint32_t message = 0;              // stage_room: which one; its low half
  const std::uint8_t* entries = nullptr;  // decode: into the packet
  NackEntry entry(std::size_t index) const noexcept;
};

// Encoders write the whole packet (data: its header) and its CRC; they return the bytes written.
std::size_t encode_data(std::uint8_t* out, const Common& common, const Data& data) noexcept;
std::size_t encode_ack(std::uint8_t* out, const Common& common, const Ack& ack, const PathReport* reports,
                       const std::uint64_t* words) noexcept;
std::size_t encode_advert(std::uint8_t* out, const Common& common, std::uint32_t first_message,
                          const AdvertEntry* entries, std::size_t count) noexcept;
std::size_t encode_advert_ack(std::uint8_t* out, const Common& common, const AdvertAck& ack) noexcept;
// And replies. `padding_bytes` follow what is written here.
std::size_t encode_probe(std::uint8_t* out, const Common& common, const Probe& probe,
                         std::size_t padding_bytes = 0) noexcept;
std::size_t encode_close(std::uint8_t* out, const Common& common, const Close& close) noexcept;  // and close_ack
std::size_t encode_demand(std::uint8_t* out, const Common& common, const Demand& demand) noexcept;
std::size_t encode_nack(std::uint8_t* out, const Common& common, const Nack& nack, const NackEntry* entries) noexcept;

// The same packet, of control, for another path.
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

// The type a datagram claims, before any check: how many bytes of it are header (data; a probe that is padded, whose
// padding means nothing) or all of it.
inline std::size_t header_bytes_of(const std::uint8_t* at, std::size_t bytes) noexcept {
  if (bytes >= kDataBytes && at[3] == static_cast<std::uint8_t>(Type::data)) return kDataBytes;
  return bytes > kProbeBytes && at[3] == static_cast<std::uint8_t>(Type::probe) ? kProbeBytes : bytes;
}

// What a data header says that its payload has, before any check; 0 of what is too short to say.
inline std::uint32_t claimed_body_bytes(const std::uint8_t* header, std::size_t bytes) noexcept {
  return bytes >= kCommonBytes ? static_cast<std::uint32_t>(header[22] | header[23] << 8) : 0;
}

// Checks length, magic, version, type and CRC before it believes a field. `payload_bytes` is what follows a data
// header.
Verdict decode(const std::uint8_t* header, std::size_t header_bytes, std::size_t payload_bytes, Packet* out) noexcept;

}  // namespace weft::wire
