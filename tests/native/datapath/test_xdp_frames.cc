// Tests the frames of AF_XDP sockets: headers, checksums, what a receiver refuses; the XDP program's encoding; and the
// words about what a host lacks.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "native/datapath/xdp/assembler.h"
#include "native/datapath/xdp/frames.h"
#include "native/datapath/xdp/steering.h"
#include "native/datapath/xdp/umem.h"
#include "native/datapath/xdp/xdp_devices.h"
#include "tests/native/check.h"

namespace {

using namespace weft::datapath;
using namespace weft::datapath::xdp;
using Bytes = std::vector<std::uint8_t>;

SocketAddress address_of(const char* text, std::uint16_t port) {
  SocketAddress made;
  std::string error;
  CHECK(resolve(text, port, AF_UNSPEC, &made, &error));
  return made;
}

Bytes frame_of(bool v6, const Bytes& payload) {
  const SocketAddress from = address_of(v6 ? "fd00::1" : "10.1.2.3", 5000);
  const SocketAddress to = address_of(v6 ? "fd00::2" : "10.1.2.4", 6000);
  const std::uint8_t here[] = {2, 0, 0, 0, 0, 1}, there[] = {2, 0, 0, 0, 0, 2};
  FrameHeaders headers;
  headers.set(from, to, 0x2A);  // DSCP 10, ECT(0)
  headers.set_macs(here, there);
  Bytes frame(kHeadersBytesMax + payload.size());
  headers.write(payload.size(), frame.data());
  const std::uint64_t sum = copy_and_sum(frame.data() + headers.bytes(), payload.data(), payload.size());
  headers.write_checksum(payload.size(), sum, frame.data());
  frame.resize(headers.bytes() + payload.size());
  return frame;
}

Bytes payload_of(std::size_t bytes) {
  Bytes payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  return payload;
}

// The checksum as RFC 1071 defines it, over words in network order.
std::uint16_t plain_checksum(const Bytes& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += static_cast<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::uint16_t number(const Bytes& bytes, std::size_t at) {
  return static_cast<std::uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

}  // namespace

TEST(frames__headers_of_ipv4) {
  const Bytes frame = frame_of(false, payload_of(100));
  CHECK_EQUAL(frame.size(), 142u);
  CHECK_EQUAL(frame[5], 2);
  CHECK_EQUAL(frame[11], 1);
  CHECK_EQUAL(number(frame, 12), 0x0800);
  CHECK_EQUAL(frame[14], 0x45);
  CHECK_EQUAL(frame[15], 0x2A);
  CHECK_EQUAL(number(frame, 16), 128);
  CHECK_EQUAL(number(frame, 20), 0x4000);
  CHECK_EQUAL(frame[23], 17);
  CHECK_EQUAL(plain_checksum(Bytes(frame.begin() + 14, frame.begin() + 34)), 0);
  CHECK_EQUAL(number(frame, 34), 5000);
  CHECK_EQUAL(number(frame, 36), 6000);
  CHECK_EQUAL(number(frame, 38), 108);
}

TEST(frames__headers_of_ipv6) {
  const Bytes frame = frame_of(true, payload_of(100));
  CHECK_EQUAL(frame.size(), 162u);
  CHECK_EQUAL(number(frame, 12), 0x86DD);
  CHECK_EQUAL(number(frame, 14), 0x62A0);
  CHECK_EQUAL(number(frame, 18), 108);
  CHECK_EQUAL(frame[20], 17);
  CHECK_EQUAL(frame[21], 64);
  CHECK_EQUAL(number(frame, 54), 5000);
}

TEST(frames__udp_checksums_are_those_of_the_rfc) {
  for (const bool v6 : {false, true}) {
    for (const std::size_t bytes : {0u, 1u, 2u, 3u, 7u, 64u, 1457u, 8900u}) {
      const Bytes frame = frame_of(v6, payload_of(bytes));
      Bytes summed(frame.begin() + (v6 ? 22 : 26), frame.end());  // the addresses, and all that follows
      const auto length = static_cast<std::uint16_t>(bytes + 8);
      if (summed.size() % 2 != 0) summed.push_back(0);
      for (const int byte : {0, 17, length >> 8, length & 0xFF}) summed.push_back(static_cast<std::uint8_t>(byte));
      CHECK_EQUAL(plain_checksum(summed), 0);
    }
  }
}

TEST(frames__a_checksum_is_never_written_as_zero) {
  for (unsigned value = 0; value < 65'536; ++value) {
    const Bytes frame =
        frame_of(false, {static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value & 0xFF)});
    CHECK(number(frame, 40) != 0);
  }
}

TEST(frames__parsing_finds_what_was_written) {
  for (const bool v6 : {false, true}) {
    for (const std::size_t bytes : {0u, 1u, 63u, 1472u, 8972u}) {
      const Bytes payload = payload_of(bytes);
      Bytes frame = frame_of(v6, payload);
      frame.resize(frame.size() + 9, 0xEE);  // Ethernet pads short frames
      ParsedFrame parsed;
      CHECK(parse_frame(frame.data(), frame.size(), &parsed));
      CHECK_EQUAL(parsed.v6, v6);
      CHECK_EQUAL(parsed.to_port, 6000);
      CHECK_EQUAL(parsed.payload_bytes, bytes);
      CHECK(!parsed.congestion_experienced);
      const auto at = frame.begin() + static_cast<std::ptrdiff_t>(parsed.payload_offset);
      CHECK(std::equal(payload.begin(), payload.end(), at));
      CHECK_EQUAL(parsed.to[(v6 ? 16 : 4) - 1], v6 ? 2 : 4);
    }
  }
}

TEST(frames__a_mark_of_congestion_is_seen) {
  Bytes v6 = frame_of(true, payload_of(10));
  v6[15] = static_cast<std::uint8_t>(v6[15] | 0x30);
  ParsedFrame parsed;
  CHECK(parse_frame(v6.data(), v6.size(), &parsed));
  CHECK(parsed.congestion_experienced);
  Bytes v4 = frame_of(false, payload_of(10));
  v4[15] = static_cast<std::uint8_t>(v4[15] | 0x03);
  CHECK(!parse_frame(v4.data(), v4.size(), &parsed));  // the header's checksum is now wrong
  v4[24] = v4[25] = 0;
  const std::uint16_t right = plain_checksum(Bytes(v4.begin() + 14, v4.begin() + 34));
  v4[24] = static_cast<std::uint8_t>(right >> 8);
  v4[25] = static_cast<std::uint8_t>(right);
  CHECK(parse_frame(v4.data(), v4.size(), &parsed));
  CHECK(parsed.congestion_experienced);
}

TEST(frames__any_changed_byte_of_ip_and_udp_is_noticed) {
  for (const bool v6 : {false, true}) {
    const Bytes good = frame_of(v6, payload_of(33));
    for (std::size_t at = 14; at < good.size(); ++at) {
      Bytes bad = good;
      bad[at] ^= 0x41;
      ParsedFrame parsed;
      // IPv6 has no checksum over its traffic class, flow label and hop limit.
      const bool unchecked = v6 && (at < 18 || at == 21);
      if (parse_frame(bad.data(), bad.size(), &parsed)) CHECK(unchecked);
    }
  }
}

TEST(frames__a_checksum_left_to_hardware_is_accepted) {
  Bytes frame = frame_of(false, payload_of(50));
  const Bytes addresses(frame.begin() + 26, frame.begin() + 34);
  Bytes pseudo = addresses;
  pseudo.insert(pseudo.end(), {0, 17, 0, 58});
  const auto sum = static_cast<std::uint16_t>(~plain_checksum(pseudo));
  frame[40] = static_cast<std::uint8_t>(sum >> 8);
  frame[41] = static_cast<std::uint8_t>(sum);
  ParsedFrame parsed;
  CHECK(parse_frame(frame.data(), frame.size(), &parsed));
}

TEST(frames__truncated_and_random_frames_are_refused_or_within_bounds) {
  std::mt19937 random(7);
  for (const bool v6 : {false, true}) {
    const Bytes good = frame_of(v6, payload_of(90));
    for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
      const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes));  // exact, for the sanitizer
      ParsedFrame parsed;
      CHECK(!parse_frame(cut.data(), cut.size(), &parsed));
    }
    for (int i = 0; i < 20'000; ++i) {
      Bytes bad = good;
      for (int changes = 0; changes < 4; ++changes) bad[12 + random() % 40] = static_cast<std::uint8_t>(random());
      ParsedFrame parsed;
      if (parse_frame(bad.data(), bad.size(), &parsed)) {
        CHECK(parsed.payload_offset + parsed.payload_bytes <= bad.size());
      }
    }
  }
}

TEST(assembler__encodes_as_the_instruction_set_says) {
  Assembler code;
  code.move(Register::r1, Register::r2);
  code.add(Register::r1, -4);
  code.load(Register::r2, Size::word, Register::r1, 16);
  code.store(Size::word, Register::stack, -4, 7);
  code.store(Size::two_words, Register::stack, -8, Register::r2);
  code.jump_if(Register::r1, Test::equal, 3, "end");
  code.call(5);
  code.label("end");
  code.leave();
  const std::uint64_t expected[] = {0x21BF,     0xFFFFFFFC00000107, 0x0000000000101261, 0x00000007FFFC0A62,
                                    0xFFF82A7B, 0x0000000300010115, 0x0000000500000085, 0x95};
  const std::vector<BpfInstruction> made = code.finish();
  CHECK_EQUAL(made.size(), std::size(expected));
  for (std::size_t i = 0; i < made.size(); ++i) {
    std::uint64_t word;
    std::memcpy(&word, &made[i], sizeof word);
    CHECK_EQUAL(word, expected[i]);
  }
}

TEST(devices__missing_capabilities_are_named) {
  constexpr std::uint64_t kRaw = 1 << 13, kAdmin = 1 << 12, kSys = 1 << 21, kBpf = std::uint64_t{1} << 39;
  CHECK_EQUAL(missing_capabilities(0), std::string("CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"));
  CHECK_EQUAL(missing_capabilities(kRaw | kBpf), std::string("CAP_NET_ADMIN"));
  CHECK_EQUAL(missing_capabilities(kRaw | kAdmin | kBpf), std::string());
  CHECK_EQUAL(missing_capabilities(kRaw | kAdmin | kSys), std::string());
}

TEST(devices__interfaces_without_queues_are_refused_with_a_reason) {
  Interface interface;
  interface.name = "x0";
  CHECK_EQUAL(why_not_xdp(interface), std::string());
  interface.kind = "veth";
  CHECK_EQUAL(why_not_xdp(interface), std::string());
  interface.kind = "bond";
  CHECK(why_not_xdp(interface).find("bond") != std::string::npos);
  interface.loopback = true;
  CHECK(why_not_xdp(interface).find("loopback") != std::string::npos);
}

TEST(devices__packets_of_several_chunks_come_with_linux_6_6) {
  CHECK(!has_segments("5.15.0-91-generic"));
  CHECK(!has_segments("6.5.13"));
  CHECK(has_segments("6.6"));
  CHECK(has_segments("6.18.44-x"));
  CHECK(has_segments("7.0"));
  CHECK(!has_segments(""));
}

TEST(devices__without_them_a_packet_fits_one_chunk) {
  CHECK_EQUAL(usable_mtu_bytes(9000, true), 9000);
  CHECK_EQUAL(usable_mtu_bytes(1500, false), 1500);
  const std::int64_t most = usable_mtu_bytes(9000, false);
  CHECK_EQUAL(most, 3806);
  for (const std::int64_t ip_udp_bytes : {28, 48}) {
    const std::int64_t frame_bytes = most - ip_udp_bytes + static_cast<std::int64_t>(kHeadersBytesMax);
    CHECK(frame_bytes <= static_cast<std::int64_t>(kChunkBytes - kHeadroomBytes));
  }
}
