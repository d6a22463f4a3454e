// Encodes and decodes all packets. Fields are accessed by byte offset. The decoder allocates nothing, and checks every
// length field against the actual size.
#include "native/wire/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "native/wire/crc32c.h"

namespace weft::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "packet fields are copied without byte swaps");

constexpr std::size_t kCrcAt = 4;
constexpr int kAwayShift = 14;
constexpr std::uint64_t kLow48 = (std::uint64_t{1} << 48) - 1;

template <class T>
void put(std::uint8_t* out, std::size_t at, T value) noexcept {
  std::memcpy(out + at, &value, sizeof value);
}

template <class T>
T get(const std::uint8_t* in, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, in + at, sizeof value);
  return value;
}

void put_common(std::uint8_t* out, const Common& common, Type type, std::size_t body_bytes) noexcept {
  put<std::uint16_t>(out, 0, kMagic);
  put<std::uint8_t>(out, 2, kVersion);
  put<std::uint8_t>(out, 3, static_cast<std::uint8_t>(type));
  put<std::uint32_t>(out, kCrcAt, 0);
  put<std::uint64_t>(out, 8, common.token);
  put<std::uint32_t>(out, 16, common.flow);
  put<std::uint8_t>(out, 20, common.path);
  put<std::uint8_t>(out, 21, common.flags);
  put<std::uint16_t>(out, 22, static_cast<std::uint16_t>(body_bytes));
}

std::size_t seal(std::uint8_t* out, std::size_t bytes) noexcept {
  put<std::uint32_t>(out, kCrcAt, crc32c(0, out, bytes));
  return bytes;
}

bool crc_holds(const std::uint8_t* header, std::size_t bytes) noexcept {
  // The CRC of a packet is computed with the CRC field set to zero.
  std::uint8_t head[8];
  std::memcpy(head, header, 8);
  put<std::uint32_t>(head, kCrcAt, 0);
  const std::uint32_t crc = crc32c(crc32c(0, head, 8), header + 8, bytes - 8);
  return crc == get<std::uint32_t>(header, kCrcAt);
}

// The smallest size of a packet of this type; 0 if the type is unknown.
std::size_t fixed_bytes(std::uint8_t type) noexcept {
  switch (static_cast<Type>(type)) {
    case Type::data:
      return kDataBytes;
    case Type::ack:
      return kAckFixedBytes;
    case Type::advert:
      return kAdvertFixedBytes;
    case Type::advert_ack:
      return kAdvertAckBytes;
    case Type::probe:
    case Type::probe_reply:
      return kProbeBytes;
    case Type::close:
    case Type::close_ack:
      return kCloseBytes;
    case Type::demand:
      return kDemandBytes;
    case Type::nack:
      return kNackFixedBytes;
  }
  return 0;
}

void get_data(const std::uint8_t* in, Data* out) noexcept {
  out->seq = get<std::uint64_t>(in, 24);
  out->sent_ns = get<std::int64_t>(in, 32);
  out->message = get<std::uint32_t>(in, 40);
  out->payload_crc = get<std::uint32_t>(in, 44);
  const auto offset = get<std::uint64_t>(in, 48), message = get<std::uint64_t>(in, 56);
  out->offset_bytes = offset & kLow48;
  out->fragment_offset = static_cast<std::uint16_t>(offset >> 48);
  out->message_bytes = message & kLow48;
  out->segment_bytes = static_cast<std::uint16_t>(message >> 48);
}

void get_ack(const std::uint8_t* in, Ack* out) noexcept {
  out->cumulative_seq = get<std::uint64_t>(in, 24);
  out->base_seq = get<std::uint64_t>(in, 32);
  out->received_bytes = get<std::uint64_t>(in, 40);
  out->granted_bytes = get<std::uint64_t>(in, 48);
  out->duplicate_segments = get<std::uint32_t>(in, 56);
  out->bitmap_words = get<std::uint16_t>(in, 60);
  out->report_count = get<std::uint8_t>(in, 62);
  out->reports = in + kAckFixedBytes;
  out->bitmap = out->reports + kAckReportBytes * out->report_count;
}

std::size_t ack_bytes(const Ack& ack) noexcept {
  return kAckFixedBytes + kAckReportBytes * ack.report_count + 8u * ack.bitmap_words;
}

}  // namespace

PathReport Ack::report(std::size_t index) const noexcept {
  const std::uint8_t* at = reports + index * kAckReportBytes;
  PathReport found;
  found.echo_sent_ns = get<std::int64_t>(at, 0);
  found.ack_delay_ns = get<std::uint32_t>(at, 8);
  found.segments = get<std::uint32_t>(at, 12);
  found.ecn_segments = get<std::uint32_t>(at, 16);
  found.path = get<std::uint8_t>(at, 20);
  found.away_ns = std::uint32_t{get<std::uint16_t>(at, 22)} << kAwayShift;
  return found;
}

AdvertEntry Advert::entry(std::size_t index) const noexcept {
  const std::uint8_t* at = entries + index * kAdvertEntryBytes;
  return {get<std::uint64_t>(at, 0), get<std::uint64_t>(at, 8), get<std::uint32_t>(at, 16)};
}

NackEntry Nack::entry(std::size_t index) const noexcept {
  const std::uint8_t* at = entries + index * kNackEntryBytes;
  return {get<std::uint64_t>(at, 0), get<std::int64_t>(at, 8)};
}

std::size_t encode_data(std::uint8_t* out, const Common& common, const Data& data) noexcept {
  put_common(out, common, Type::data, common.body_bytes);
  put(out, 24, data.seq);
  put(out, 32, data.sent_ns);
  put(out, 40, data.message);
  put(out, 44, data.payload_crc);
  put(out, 48, (data.offset_bytes & kLow48) | std::uint64_t{data.fragment_offset} << 48);
  put(out, 56, (data.message_bytes & kLow48) | std::uint64_t{data.segment_bytes} << 48);
  return seal(out, kDataBytes);
}

std::size_t encode_ack(std::uint8_t* out, const Common& common, const Ack& ack, const PathReport* reports,
                       const std::uint64_t* words) noexcept {
  const std::size_t bytes = ack_bytes(ack);
  put_common(out, common, Type::ack, bytes - kCommonBytes);
  put(out, 24, ack.cumulative_seq);
  put(out, 32, ack.base_seq);
  put(out, 40, ack.received_bytes);
  put(out, 48, ack.granted_bytes);
  put(out, 56, ack.duplicate_segments);
  put(out, 60, ack.bitmap_words);
  put(out, 62, ack.report_count);
  put<std::uint8_t>(out, 63, 0);
  std::uint8_t* at = out + kAckFixedBytes;
  for (std::size_t i = 0; i < ack.report_count; ++i, at += kAckReportBytes) {
    put(at, 0, reports[i].echo_sent_ns);
    put(at, 8, reports[i].ack_delay_ns);
    put(at, 12, reports[i].segments);
    put(at, 16, reports[i].ecn_segments);
    put(at, 20, reports[i].path);
    put<std::uint8_t>(at, 21, 0);
    put(at, 22, static_cast<std::uint16_t>(std::min(reports[i].away_ns >> kAwayShift, 0xFFFFu)));
  }
  if (ack.bitmap_words != 0) std::memcpy(at, words, 8u * ack.bitmap_words);
  return seal(out, bytes);
}

std::size_t encode_advert(std::uint8_t* out, const Common& common, std::uint32_t first_message,
                          const AdvertEntry* entries, std::size_t count) noexcept {
  const std::size_t bytes = kAdvertFixedBytes + kAdvertEntryBytes * count;
  put_common(out, common, Type::advert, bytes - kCommonBytes);
  put(out, 24, first_message);
  put(out, 28, static_cast<std::uint16_t>(count));
  put<std::uint16_t>(out, 30, 0);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint8_t* at = out + kAdvertFixedBytes + i * kAdvertEntryBytes;
    put(at, 0, entries[i].capacity_bytes);
    put(at, 8, entries[i].address);
    put(at, 16, entries[i].key);
    put<std::uint32_t>(at, 20, 0);
  }
  return seal(out, bytes);
}

std::size_t encode_advert_ack(std::uint8_t* out, const Common& common, const AdvertAck& ack) noexcept {
  put_common(out, common, Type::advert_ack, kAdvertAckBytes - kCommonBytes);
  put(out, 24, ack.posted_messages);
  put<std::uint32_t>(out, 28, 0);
  return seal(out, kAdvertAckBytes);
}

std::size_t encode_probe(std::uint8_t* out, const Common& common, const Probe& probe,
                         std::size_t padding_bytes) noexcept {
  put_common(out, common, common.type, kProbeBytes - kCommonBytes + padding_bytes);
  put(out, 24, probe.probe_id);
  put(out, 32, probe.sent_ns);
  return seal(out, kProbeBytes);
}

std::size_t encode_close(std::uint8_t* out, const Common& common, const Close& close) noexcept {
  put_common(out, common, common.type, kCloseBytes - kCommonBytes);
  put(out, 24, close.reason);
  put<std::uint32_t>(out, 28, 0);
  put(out, 32, close.cumulative_seq);
  return seal(out, kCloseBytes);
}

std::size_t encode_demand(std::uint8_t* out, const Common& common, const Demand& demand) noexcept {
  put_common(out, common, Type::demand, kDemandBytes - kCommonBytes);
  put(out, 24, demand.demand_bytes);
  put(out, 32, demand.lost_bytes);
  return seal(out, kDemandBytes);
}

std::size_t encode_nack(std::uint8_t* out, const Common& common, const Nack& nack, const NackEntry* entries) noexcept {
  const std::size_t bytes = kNackFixedBytes + kNackEntryBytes * nack.count;
  put_common(out, common, Type::nack, bytes - kCommonBytes);
  put(out, 24, nack.granted_bytes);
  put(out, 32, nack.detail);
  put(out, 40, nack.count);
  put(out, 42, static_cast<std::uint16_t>(nack.kind));
  put(out, 44, nack.message);
  for (std::size_t i = 0; i < nack.count; ++i) {
    put(out + kNackFixedBytes + i * kNackEntryBytes, 0, entries[i].seq);
    put(out + kNackFixedBytes + i * kNackEntryBytes, 8, entries[i].sent_ns);
  }
  return seal(out, bytes);
}

void set_path(std::uint8_t* packet, std::size_t bytes, std::uint8_t path) noexcept {
  put(packet, 20, path);
  put<std::uint32_t>(packet, kCrcAt, 0);
  seal(packet, bytes);
}

namespace {

// Decodes the fields after the common header. The caller has checked that the packet has at least the smallest size of
// its type, out->common.type.
Verdict decode_body(const std::uint8_t* header, std::size_t header_bytes, Packet* out) noexcept {
  switch (out->common.type) {
    case Type::data:
      get_data(header, &out->data);
      return Verdict::ok;
    case Type::ack:
      get_ack(header, &out->ack);
      return out->ack.bitmap_words <= kAckWordsMax && out->ack.report_count <= kAckReportsMax &&
                     header_bytes == ack_bytes(out->ack)
                 ? Verdict::ok
                 : Verdict::bad_length;
    case Type::advert:
      out->advert.first_message = get<std::uint32_t>(header, 24);
      out->advert.count = get<std::uint16_t>(header, 28);
      out->advert.entries = header + kAdvertFixedBytes;
      return out->advert.count <= kAdvertEntriesMax &&
                     header_bytes == kAdvertFixedBytes + kAdvertEntryBytes * out->advert.count
                 ? Verdict::ok
                 : Verdict::bad_length;
    case Type::advert_ack:
      out->advert_ack.posted_messages = get<std::uint32_t>(header, 24);
      break;
    case Type::probe:
    case Type::probe_reply:
      out->probe.probe_id = get<std::uint64_t>(header, 24);
      out->probe.sent_ns = get<std::int64_t>(header, 32);
      break;
    case Type::close:
    case Type::close_ack:
      out->close.reason = get<std::uint32_t>(header, 24);
      out->close.cumulative_seq = get<std::uint64_t>(header, 32);
      break;
    case Type::demand:
      out->demand.demand_bytes = get<std::uint64_t>(header, 24);
      out->demand.lost_bytes = get<std::uint64_t>(header, 32);
      break;
    case Type::nack:
      out->nack.granted_bytes = get<std::uint64_t>(header, 24);
      out->nack.detail = get<std::uint64_t>(header, 32);
      out->nack.count = get<std::uint16_t>(header, 40);
      out->nack.kind = static_cast<Nack::Kind>(get<std::uint16_t>(header, 42));
      out->nack.message = get<std::uint32_t>(header, 44);
      out->nack.entries = header + kNackFixedBytes;
      return out->nack.count <= kNackEntriesMax && header_bytes == kNackFixedBytes + kNackEntryBytes * out->nack.count
                 ? Verdict::ok
                 : Verdict::bad_length;
  }
  return header_bytes == fixed_bytes(static_cast<std::uint8_t>(out->common.type)) ? Verdict::ok : Verdict::bad_length;
}

}  // namespace

Verdict decode(const std::uint8_t* header, std::size_t header_bytes, std::size_t payload_bytes, Packet* out) noexcept {
  if (header_bytes < kCommonBytes) return Verdict::too_short;
  if (get<std::uint16_t>(header, 0) != kMagic) return Verdict::bad_magic;
  if (get<std::uint8_t>(header, 2) != kVersion) return Verdict::bad_version;
  const auto type = get<std::uint8_t>(header, 3);
  const std::size_t least = fixed_bytes(type);
  if (least == 0) return Verdict::bad_type;
  if (header_bytes < least) return Verdict::too_short;
  const auto body_bytes = get<std::uint16_t>(header, 22);
  const bool is_data = static_cast<Type>(type) == Type::data, is_probe = static_cast<Type>(type) == Type::probe;
  const bool length_right = is_data ? header_bytes == kDataBytes && body_bytes == payload_bytes
                                    : (payload_bytes == 0 || (is_probe && header_bytes == kProbeBytes)) &&
                                          body_bytes == header_bytes - kCommonBytes + payload_bytes;
  if (!length_right) return Verdict::bad_length;
  if (!crc_holds(header, header_bytes)) return Verdict::bad_crc;

  out->common.token = get<std::uint64_t>(header, 8);
  out->common.flow = get<std::uint32_t>(header, 16);
  out->common.type = static_cast<Type>(type);
  out->common.path = get<std::uint8_t>(header, 20);
  out->common.flags = get<std::uint8_t>(header, 21);
  out->common.body_bytes = body_bytes;
  return decode_body(header, header_bytes, out);
}

}  // namespace weft::wire
