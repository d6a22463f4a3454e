// Tests encoding and decoding of every packet type, every verdict, and that no truncated packet or flipped bit is
// accepted.
#include <algorithm>
#include <cstring>
#include <vector>

#include "native/core/random.h"
#include "native/wire/crc32c.h"
#include "native/wire/wire.h"
#include "tests/native/check.h"

using namespace weft::wire;
using weft::core::Random;
using Bytes = std::vector<std::uint8_t>;

namespace {

Common common_of(Type type) {
  Common common;
  common.token = 0x0123'4567'89AB'CDEFu;
  common.flow = 0xDEAD'BEEFu;
  common.type = type;
  common.path = 0xC7;
  common.flags = 0x01;
  return common;
}

template <class Encode>
Bytes packet_of(Encode encode) {
  Bytes out(2048);
  out.resize(encode(out.data()));
  return out;
}

Verdict decode_control(const Bytes& bytes, Packet* packet) { return decode(bytes.data(), bytes.size(), 0, packet); }

constexpr std::uint16_t kPayloadBytes = 1400;

Bytes data_packet() {
  Common common = common_of(Type::data);
  common.body_bytes = kPayloadBytes;
  Data data{0x1122334455667788u, -7, 0x99AABBCCu, 0xDDEEFF00u, 0x030405060708u, 0x131415161718u, 0x0102, 0x1112};
  return packet_of([&](std::uint8_t* out) { return encode_data(out, common, data); });
}

Ack ack_fields() {
  Ack ack;
  ack.cumulative_seq = 0x0102030405060708u;
  ack.base_seq = 0x1112131415161718u;
  ack.received_bytes = 0x4142434445464748u;
  ack.granted_bytes = 0x5152535455565758u;
  ack.duplicate_segments = 0x61626364u;
  return ack;
}

PathReport report_fields(std::uint8_t path) {
  return {-0x21222324252627, 0x31323334u + path, 0x71727374u + path, 0x81828384u + path, path, (0x4142u + path) << 14};
}

Bytes ack_packet(std::uint16_t words, std::uint8_t reports = 2) {
  Ack ack = ack_fields();
  ack.bitmap_words = words;
  ack.report_count = reports;
  std::vector<std::uint64_t> bitmap(words + 1u);
  for (std::size_t i = 0; i < words; ++i) bitmap[i] = 0x9E3779B97F4A7C15u * (i + 1);
  std::vector<PathReport> paths;
  for (std::uint8_t i = 0; i <= reports; ++i) paths.push_back(report_fields(static_cast<std::uint8_t>(255 - i)));
  return packet_of(
      [&](std::uint8_t* out) { return encode_ack(out, common_of(Type::ack), ack, paths.data(), bitmap.data()); });
}

Bytes advert_packet(std::size_t count) {
  std::vector<AdvertEntry> entries(count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    entries[i] = {1000 + i, 0xFFFF'0000'0000'0000u + i, static_cast<std::uint32_t>(7 * i)};
  }
  return packet_of([&](std::uint8_t* out) {
    return encode_advert(out, common_of(Type::advert), 0xCAFE0001u, entries.data(), count);
  });
}

Bytes nack_packet(std::size_t count) {
  std::vector<NackEntry> entries(count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    entries[i] = {0x1122334455667788u + i, 0x0102030405060708 + static_cast<std::int64_t>(i)};
  }
  return packet_of([&](std::uint8_t* out) {
    Nack nack;
    nack.granted_bytes = 0x5566778899AABBCCu;
    nack.detail = 0xF00000000000000Du;
    nack.kind = Nack::Kind::no_room;
    nack.message = 0x89ABCDEFu;
    nack.count = static_cast<std::uint16_t>(count);
    return encode_nack(out, common_of(Type::nack), nack, entries.data());
  });
}

Bytes small_packet(Type type) {
  const Common common = common_of(type);
  return packet_of([&](std::uint8_t* out) -> std::size_t {
    switch (type) {
      case Type::advert_ack:
        return encode_advert_ack(out, common, {0x89ABCDEFu});
      case Type::probe:
      case Type::probe_reply:
        return encode_probe(out, common, {0xF0E0D0C0B0A09080u, 0x1234567890});
      case Type::close:
      case Type::close_ack:
        return encode_close(out, common, {14, 0x7766554433221100u});
      default:
        return encode_demand(out, common, {0x8899AABBCCDDEEFFu, 0x0123456789ABCDEFu});
    }
  });
}

struct Sample {
  Bytes bytes;
  std::size_t payload_bytes;
};

std::vector<Sample> samples() {
  std::vector<Sample> all = {{data_packet(), kPayloadBytes},
                             {ack_packet(0), 0},
                             {ack_packet(5), 0},
                             {ack_packet(kAckWordsMax, kAckReportsMax), 0},
                             {advert_packet(0), 0},
                             {advert_packet(3), 0},
                             {advert_packet(kAdvertEntriesMax), 0},
                             {nack_packet(0), 0},
                             {nack_packet(kNackEntriesMax), 0}};
  for (const Type type : {Type::advert_ack, Type::probe, Type::probe_reply, Type::close, Type::close_ack, Type::demand})
    all.push_back({small_packet(type), 0});
  return all;
}

void check_common(const Packet& packet, Type type) {
  CHECK_EQUAL(packet.common.token, 0x0123'4567'89AB'CDEFu);
  CHECK_EQUAL(packet.common.flow, 0xDEAD'BEEFu);
  CHECK(packet.common.type == type);
  CHECK_EQUAL(int{packet.common.path}, 0xC7);
  CHECK_EQUAL(int{packet.common.flags}, 0x01);
}

// Recomputes the CRC of a changed packet, so that the checks after the CRC check are tested.
void reseal(Bytes* bytes) {
  std::memset(bytes->data() + 4, 0, 4);
  const std::uint32_t crc = crc32c(0, bytes->data(), bytes->size());
  std::memcpy(bytes->data() + 4, &crc, 4);
}

}  // namespace

TEST(crc32c__vectors_of_rfc_3720) {
  Bytes zeros(32, 0x00), ones(32, 0xFF), up(32), down(32);
  for (std::uint8_t i = 0; i < 32; ++i) {
    up[i] = i;
    down[i] = static_cast<std::uint8_t>(31 - i);
  }
  const Bytes read_command = {0x01, 0xC0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                              0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                              0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  for (const auto function : {crc32c, crc32c_narrow, crc32c_portable}) {
    CHECK_EQUAL(function(0, zeros.data(), 32), 0x8A9136AAu);
    CHECK_EQUAL(function(0, ones.data(), 32), 0x62A8AB43u);
    CHECK_EQUAL(function(0, up.data(), 32), 0x46DD794Eu);
    CHECK_EQUAL(function(0, down.data(), 32), 0x113FDB5Cu);
    CHECK_EQUAL(function(0, read_command.data(), read_command.size()), 0xD9963A56u);
    CHECK_EQUAL(function(0, nullptr, 0), 0u);
  }
}

TEST(crc32c__is_the_portable_one_at_every_length_and_alignment) {
  Random random(1);
  Bytes bytes(600);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t length = 0; length < 300; ++length) {
      const auto seed = static_cast<std::uint32_t>(random.next());
      CHECK_EQUAL(crc32c(seed, &bytes[from], length), crc32c_portable(seed, &bytes[from], length));
    }
  }
  for (std::size_t cut = 0; cut <= 500; cut += 7) {
    CHECK_EQUAL(crc32c(crc32c(0, bytes.data(), cut), &bytes[cut], 500 - cut), crc32c(0, bytes.data(), 500));
  }
}

// Tests lengths around the block sizes of all implementations; a copy must write only its range.
TEST(crc32c__copies_and_long_ranges_are_the_portable_one) {
  Random random(2);
  Bytes bytes(70'000);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  std::vector<std::size_t> lengths = {0, 1, 7, 8936, 65'408, 65'537, 69'900};
  for (const std::size_t block : {64u, 128u, 256u, 384u, 512u, 768u, 1024u, 3072u, 3456u, 6144u, 9216u}) {
    for (const std::size_t more : {0u, 1u, 8u, 9u, 63u}) {
      lengths.push_back(block + more);
      lengths.push_back(block - more - 1);
    }
  }
  for (const std::size_t length : lengths) {
    for (const std::size_t from : {0u, 1u, 8u, 37u}) {
      const auto seed = static_cast<std::uint32_t>(random.next());
      const std::uint32_t wanted = crc32c_portable(seed, &bytes[from], length);
      CHECK_EQUAL(crc32c(seed, &bytes[from], length), wanted);
      CHECK_EQUAL(crc32c_narrow(seed, &bytes[from], length), wanted);
      for (const auto copy : {crc32c_copy, crc32c_narrow_copy}) {
        Bytes to(length + 16, 0xA5);
        CHECK_EQUAL(copy(seed, &to[5], &bytes[from], length), wanted);
        CHECK(std::equal(to.begin() + 5, to.begin() + 5 + static_cast<std::ptrdiff_t>(length), &bytes[from]));
        for (std::size_t i = 0; i < 16; ++i) CHECK_EQUAL(to[i < 5 ? i : i + length], 0xA5);
      }
    }
  }
}

TEST(crc32c__sees_every_damaged_bit) {
  Bytes bytes(9000, 0x11);
  const std::uint32_t before = crc32c(0, bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += 5) {
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ 1u << bit % 8);
    CHECK(crc32c(0, bytes.data(), bytes.size()) != before);
    bytes[bit / 8] = 0x11;
  }
}

TEST(wire__data_round_trip) {
  Packet packet;
  CHECK_EQUAL(decode(data_packet().data(), kDataBytes, kPayloadBytes, &packet), Verdict::ok);
  check_common(packet, Type::data);
  CHECK_EQUAL(packet.common.body_bytes, kPayloadBytes);
  CHECK_EQUAL(packet.data.seq, 0x1122334455667788u);
  CHECK_EQUAL(packet.data.sent_ns, -7);
  CHECK_EQUAL(packet.data.message, 0x99AABBCCu);
  CHECK_EQUAL(packet.data.payload_crc, 0xDDEEFF00u);
  CHECK_EQUAL(packet.data.offset_bytes, 0x030405060708u);
  CHECK_EQUAL(packet.data.message_bytes, 0x131415161718u);
  CHECK_EQUAL(packet.data.fragment_offset, 0x0102u);
  CHECK_EQUAL(packet.data.segment_bytes, 0x1112u);
}

void check_ack(std::uint16_t words, std::uint8_t reports) {
  const Bytes bytes = ack_packet(words, reports);
  Packet packet;
  CHECK_EQUAL(decode_control(bytes, &packet), Verdict::ok);
  check_common(packet, Type::ack);
  const Ack expected = ack_fields();
  CHECK_EQUAL(packet.ack.cumulative_seq, expected.cumulative_seq);
  CHECK_EQUAL(packet.ack.base_seq, expected.base_seq);
  CHECK_EQUAL(packet.ack.received_bytes, expected.received_bytes);
  CHECK_EQUAL(packet.ack.granted_bytes, expected.granted_bytes);
  CHECK_EQUAL(packet.ack.duplicate_segments, expected.duplicate_segments);
  CHECK_EQUAL(packet.ack.bitmap_words, words);
  CHECK_EQUAL(packet.ack.report_count, reports);
  for (std::uint8_t i = 0; i < reports; ++i) {
    const PathReport report = packet.ack.report(i);
    const PathReport wanted = report_fields(static_cast<std::uint8_t>(255 - i));
    CHECK_EQUAL(report.echo_sent_ns, wanted.echo_sent_ns);
    CHECK_EQUAL(report.ack_delay_ns, wanted.ack_delay_ns);
    CHECK_EQUAL(report.away_ns, wanted.away_ns);
    CHECK_EQUAL(report.segments, wanted.segments);
    CHECK_EQUAL(report.ecn_segments, wanted.ecn_segments);
    CHECK_EQUAL(report.path, wanted.path);
  }
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, packet.ack.bitmap + 8 * i, 8);
    CHECK_EQUAL(word, 0x9E3779B97F4A7C15u * (i + 1));
  }
}

TEST(wire__ack_round_trip) {
  for (const std::uint16_t words : std::initializer_list<std::uint16_t>{0, 1, 5, kAckWordsMax - 1, kAckWordsMax}) {
    for (std::uint8_t reports = 0; reports <= kAckReportsMax; ++reports) check_ack(words, reports);
  }
}

TEST(wire__advert_round_trip) {
  for (const std::size_t count : {0u, 1u, 48u}) {
    const Bytes bytes = advert_packet(count);
    Packet packet;
    CHECK_EQUAL(decode_control(bytes, &packet), Verdict::ok);
    check_common(packet, Type::advert);
    CHECK_EQUAL(packet.advert.first_message, 0xCAFE0001u);
    CHECK_EQUAL(packet.advert.count, count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK_EQUAL(packet.advert.entry(i).capacity_bytes, 1000 + i);
      CHECK_EQUAL(packet.advert.entry(i).address, 0xFFFF'0000'0000'0000u + i);
      CHECK_EQUAL(packet.advert.entry(i).key, 7 * i);
    }
  }
}

TEST(wire__small_packets_round_trip) {
  Packet packet;
  CHECK_EQUAL(decode_control(small_packet(Type::advert_ack), &packet), Verdict::ok);
  check_common(packet, Type::advert_ack);
  CHECK_EQUAL(packet.advert_ack.posted_messages, 0x89ABCDEFu);
  for (const Type type : {Type::probe, Type::probe_reply}) {
    CHECK_EQUAL(decode_control(small_packet(type), &packet), Verdict::ok);
    check_common(packet, type);
    CHECK_EQUAL(packet.probe.probe_id, 0xF0E0D0C0B0A09080u);
    CHECK_EQUAL(packet.probe.sent_ns, 0x1234567890);
  }
  for (const Type type : {Type::close, Type::close_ack}) {
    CHECK_EQUAL(decode_control(small_packet(type), &packet), Verdict::ok);
    check_common(packet, type);
    CHECK_EQUAL(packet.close.reason, 14u);
    CHECK_EQUAL(packet.close.cumulative_seq, 0x7766554433221100u);
  }
  CHECK_EQUAL(decode_control(small_packet(Type::demand), &packet), Verdict::ok);
  check_common(packet, Type::demand);
  CHECK_EQUAL(packet.demand.demand_bytes, 0x8899AABBCCDDEEFFu);
  CHECK_EQUAL(packet.demand.lost_bytes, 0x0123456789ABCDEFu);

  const Bytes nack = nack_packet(3);  // a variable, because the decoded packet points into it
  CHECK_EQUAL(decode_control(nack, &packet), Verdict::ok);
  check_common(packet, Type::nack);
  CHECK_EQUAL(packet.nack.count, 3u);
  CHECK_EQUAL(packet.nack.granted_bytes, 0x5566778899AABBCCu);
  CHECK_EQUAL(packet.nack.detail, 0xF00000000000000Du);
  CHECK_EQUAL(packet.nack.kind, Nack::Kind::no_room);
  CHECK_EQUAL(packet.nack.message, 0x89ABCDEFu);
  CHECK_EQUAL(packet.nack.entry(2).seq, 0x1122334455667788u + 2);
  CHECK_EQUAL(packet.nack.entry(2).sent_ns, 0x0102030405060708 + 2);
}

TEST(wire__a_probe_may_be_padded_and_nothing_else_of_control) {
  Packet packet;
  Bytes out(kProbeBytes);
  encode_probe(out.data(), common_of(Type::probe), {7, 8}, 1000);
  CHECK_EQUAL(decode(out.data(), kProbeBytes, 1000, &packet), Verdict::ok);
  CHECK_EQUAL(packet.probe.probe_id, 7u);
  CHECK_EQUAL(decode(out.data(), kProbeBytes, 999, &packet), Verdict::bad_length);
  CHECK_EQUAL(decode(out.data(), kProbeBytes, 0, &packet), Verdict::bad_length);
  // A socket passes the packet split where the header ends.
  out.resize(kProbeBytes + 1000);
  CHECK_EQUAL(header_bytes_of(out.data(), out.size()), kProbeBytes);
  encode_probe(out.data(), common_of(Type::probe_reply), {7, 8}, 1000);
  CHECK_EQUAL(decode(out.data(), kProbeBytes, 1000, &packet), Verdict::bad_length);
  CHECK_EQUAL(header_bytes_of(out.data(), out.size()), out.size());
}

TEST(wire__no_control_packet_exceeds_its_bound) {
  for (const Sample& sample : samples()) CHECK(sample.bytes.size() <= kControlBytesMax);
}

TEST(wire__every_truncation_is_refused) {
  for (const Sample& sample : samples()) {
    for (std::size_t bytes = 0; bytes < sample.bytes.size(); ++bytes) {
      // Make a copy of exactly this length, so that the address sanitizer detects reads beyond it.
      const Bytes cut(sample.bytes.begin(), sample.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
      Packet packet;
      const Verdict verdict = decode(cut.data(), cut.size(), sample.payload_bytes, &packet);
      CHECK(verdict == Verdict::too_short || verdict == Verdict::bad_length);
    }
  }
}

TEST(wire__every_flipped_bit_is_refused) {
  for (const Sample& sample : samples()) {
    Bytes bytes = sample.bytes;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto mask = static_cast<std::uint8_t>(1u << (bit % 8));
      bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
      Packet packet;
      CHECK(decode(bytes.data(), bytes.size(), sample.payload_bytes, &packet) != Verdict::ok);
      bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
    }
  }
}

TEST(wire__each_verdict) {
  Packet packet;
  const auto verdict = [&](Bytes bytes, std::size_t at, std::uint8_t value, std::size_t payload_bytes = 0) {
    bytes[at] = value;
    reseal(&bytes);
    return decode(bytes.data(), bytes.size(), payload_bytes, &packet);
  };
  const Bytes probe = small_packet(Type::probe);
  CHECK_EQUAL(decode(probe.data(), kCommonBytes - 1, 0, &packet), Verdict::too_short);
  CHECK_EQUAL(verdict(probe, 0, 'X'), Verdict::bad_magic);
  CHECK_EQUAL(verdict(probe, 1, 'X'), Verdict::bad_magic);
  CHECK_EQUAL(verdict(probe, 2, kVersion + 1), Verdict::bad_version);
  CHECK_EQUAL(verdict(probe, 3, 0), Verdict::bad_type);
  CHECK_EQUAL(verdict(probe, 3, 11), Verdict::bad_type);
  CHECK_EQUAL(verdict(probe, 3, 255), Verdict::bad_type);
  CHECK_EQUAL(verdict(probe, 22, 0), Verdict::bad_length);
  CHECK_EQUAL(verdict(probe, 3, static_cast<std::uint8_t>(Type::advert_ack)), Verdict::bad_length);
  CHECK_EQUAL(verdict(probe, 3, static_cast<std::uint8_t>(Type::ack)), Verdict::too_short);
  Bytes crc = probe;
  crc[4] = static_cast<std::uint8_t>(crc[4] ^ 1u);
  CHECK_EQUAL(decode_control(crc, &packet), Verdict::bad_crc);
  CHECK_EQUAL(decode(probe.data(), probe.size(), 1, &packet), Verdict::bad_length);
}

TEST(wire__counts_that_disagree_with_the_length_are_refused) {
  Packet packet;
  for (const std::uint8_t words : std::initializer_list<std::uint8_t>{0, 1, 4, 6, 121, 255}) {
    Bytes ack = ack_packet(5);
    ack[60] = words;
    reseal(&ack);
    CHECK_EQUAL(decode_control(ack, &packet), Verdict::bad_length);
  }
  for (const std::uint8_t reports : std::initializer_list<std::uint8_t>{0, 1, 3, 9, 255}) {
    Bytes ack = ack_packet(5, 2);
    ack[62] = reports;
    reseal(&ack);
    CHECK_EQUAL(decode_control(ack, &packet), Verdict::bad_length);
  }
  // One report more and three bitmap words fewer have the same total length; the limit on reports must refuse the
  // packet.
  Bytes ack = ack_packet(5, kAckReportsMax);
  ack[60] = 2;
  ack[62] = kAckReportsMax + 1;
  reseal(&ack);
  CHECK_EQUAL(decode_control(ack, &packet), Verdict::bad_length);
  for (const std::uint8_t count : std::initializer_list<std::uint8_t>{0, 2, 4, 49, 255}) {
    Bytes advert = advert_packet(3);
    advert[28] = count;
    reseal(&advert);
    CHECK_EQUAL(decode_control(advert, &packet), Verdict::bad_length);
  }
  const Bytes data = data_packet();
  CHECK_EQUAL(decode(data.data(), kDataBytes, kPayloadBytes - 1u, &packet), Verdict::bad_length);
  CHECK_EQUAL(decode(data.data(), kDataBytes, kPayloadBytes + 1u, &packet), Verdict::bad_length);
  CHECK_EQUAL(decode(data.data(), kDataBytes - 1, kPayloadBytes, &packet), Verdict::too_short);
}

TEST(wire__header_bytes_of) {
  const Bytes data = data_packet();
  CHECK_EQUAL(header_bytes_of(data.data(), 2000), kDataBytes);
  CHECK_EQUAL(header_bytes_of(data.data(), 63), 63u);
  const Bytes probe = small_packet(Type::probe);
  CHECK_EQUAL(header_bytes_of(probe.data(), probe.size()), probe.size());
}
