// Computes checksums and writes headers. Sums are computed in 64 bits over 32-bit words, which compilers vectorize.
#include "native/datapath/xdp/frames.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace weft::datapath::xdp {
namespace {

constexpr std::size_t kV4Bytes = 20, kV6Bytes = 40;
constexpr std::uint8_t kHopLimit = 64, kEcn = 0x03;
constexpr std::uint16_t kDontFragment = 0x4000, kFragmentBits = 0x3FFF;

std::uint16_t word_at(const std::uint8_t* at) noexcept {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint16_t number_at(const std::uint8_t* at) noexcept { return ntohs(word_at(at)); }

void put_number(std::uint8_t* at, std::size_t value) noexcept {
  const std::uint16_t word = htons(static_cast<std::uint16_t>(value));
  std::memcpy(at, &word, sizeof word);
}

void put_word(std::uint8_t* at, std::uint16_t word) noexcept { std::memcpy(at, &word, sizeof word); }

template <bool copies>
std::uint64_t walk(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) noexcept {
  std::uint64_t sum = 0;
  std::size_t at = 0;
  for (; at + 4 <= bytes; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, from + at, sizeof word);
    if constexpr (copies) std::memcpy(to + at, &word, sizeof word);
    sum += word;
  }
  std::uint32_t last = 0;
  if (at < bytes) std::memcpy(&last, from + at, bytes - at);
  if constexpr (copies) {
    if (at < bytes) std::memcpy(to + at, from + at, bytes - at);
  }
  return sum + last;
}

// The sum of the pseudo header but for the length.
std::uint64_t pseudo_sum(const std::uint8_t* addresses, bool v6) noexcept {
  return sum_of(addresses, v6 ? 32 : 8) + htons(IPPROTO_UDP);
}

// Whether the checksum of a UDP datagram is right. Between interfaces of one host, such as veth, the kernel leaves the
// datagram's own part to hardware that is not there: the field then has the sum of the pseudo header.
bool udp_checksum_is_right(const std::uint8_t* udp, std::size_t bytes, std::uint64_t pseudo, bool v6) noexcept {
  const std::uint16_t told = word_at(udp + 6);
  if (told == 0) return !v6;
  pseudo += htons(static_cast<std::uint16_t>(bytes));
  return folded(pseudo + sum_of(udp, bytes)) == 0xFFFF || told == folded(pseudo);
}

bool parse_udp(const std::uint8_t* udp, std::size_t room, std::uint64_t pseudo, ParsedFrame* out) noexcept {
  if (room < kUdpHeaderBytes) return false;
  const std::size_t bytes = number_at(udp + 4);
  if (bytes < kUdpHeaderBytes || bytes > room) return false;
  if (!udp_checksum_is_right(udp, bytes, pseudo, out->v6)) return false;
  out->to_port = number_at(udp + 2);
  out->payload_bytes = bytes - kUdpHeaderBytes;
  return true;
}

bool parse_v4(const std::uint8_t* frame, std::size_t bytes, ParsedFrame* out) noexcept {
  const std::uint8_t* const ip = frame + kEthernetBytes;
  if (bytes < headers_bytes(false) || ip[0] != 0x45 || ip[9] != IPPROTO_UDP) return false;
  const std::size_t total = number_at(ip + 2);
  if (total < kV4Bytes + kUdpHeaderBytes || total > bytes - kEthernetBytes) return false;
  if ((number_at(ip + 6) & kFragmentBits) != 0 || folded(sum_of(ip, kV4Bytes)) != 0xFFFF) return false;
  out->v6 = false;
  out->to = ip + 16;
  out->congestion_experienced = (ip[1] & kEcn) == kEcn;
  out->payload_offset = headers_bytes(false);
  return parse_udp(ip + kV4Bytes, total - kV4Bytes, pseudo_sum(ip + 12, false), out);
}

bool parse_v6(const std::uint8_t* frame, std::size_t bytes, ParsedFrame* out) noexcept {
  const std::uint8_t* const ip = frame + kEthernetBytes;
  if (bytes < headers_bytes(true) || ip[0] >> 4 != 6 || ip[6] != IPPROTO_UDP) return false;
  const std::size_t room = number_at(ip + 4);
  if (room > bytes - kEthernetBytes - kV6Bytes) return false;
  out->v6 = true;
  out->to = ip + 24;
  out->congestion_experienced = (ip[1] >> 4 & kEcn) == kEcn;
  out->payload_offset = headers_bytes(true);
  return parse_udp(ip + kV6Bytes, room, pseudo_sum(ip + 8, true), out);
}

}  // namespace

std::uint64_t sum_of(const std::uint8_t* from, std::size_t bytes) noexcept { return walk<false>(nullptr, from, bytes); }

std::uint64_t copy_and_sum(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) noexcept {
  return walk<true>(to, from, bytes);
}

std::uint16_t folded(std::uint64_t sum) noexcept {
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

void FrameHeaders::set(const SocketAddress& from, const SocketAddress& to, std::uint8_t traffic_class) noexcept {
  v6_ = from.is_v6();
  bytes_ = headers_bytes(v6_);
  std::fill(template_ + 2 * kMacBytes, template_ + sizeof template_, std::uint8_t{0});
  put_number(template_ + 12, v6_ ? 0x86DD : 0x0800);
  std::uint8_t* const ip = template_ + kEthernetBytes;
  std::uint8_t* const udp = ip + (v6_ ? kV6Bytes : kV4Bytes);
  if (v6_) {
    put_number(ip, 0x6000u | static_cast<unsigned>(traffic_class) << 4);
    ip[6] = IPPROTO_UDP;
    ip[7] = kHopLimit;
    std::memcpy(ip + 8, &from.v6.sin6_addr, 16);
    std::memcpy(ip + 24, &to.v6.sin6_addr, 16);
  } else {
    ip[0] = 0x45;
    ip[1] = traffic_class;
    put_number(ip + 6, kDontFragment);
    ip[8] = kHopLimit;
    ip[9] = IPPROTO_UDP;
    std::memcpy(ip + 12, &from.v4.sin_addr, 4);
    std::memcpy(ip + 16, &to.v4.sin_addr, 4);
  }
  put_number(udp, from.port());
  put_number(udp + 2, to.port());
  ip_sum_ = v6_ ? 0 : sum_of(ip, kV4Bytes);
  pseudo_sum_ = pseudo_sum(ip + (v6_ ? 8 : 12), v6_) + sum_of(udp, 4);
}

void FrameHeaders::set_macs(const std::uint8_t* from, const std::uint8_t* to) noexcept {
  std::memcpy(template_, to, kMacBytes);
  std::memcpy(template_ + kMacBytes, from, kMacBytes);
}

void FrameHeaders::write(std::size_t payload_bytes, std::uint8_t* out) const noexcept {
  std::memcpy(out, template_, kHeadersBytesMax);
  std::uint8_t* const ip = out + kEthernetBytes;
  const std::size_t udp_bytes = payload_bytes + kUdpHeaderBytes;
  if (v6_) {
    put_number(ip + 4, udp_bytes);
  } else {
    const std::uint16_t total = htons(static_cast<std::uint16_t>(udp_bytes + kV4Bytes));
    put_word(ip + 2, total);
    put_word(ip + 10, static_cast<std::uint16_t>(~folded(ip_sum_ + total)));
  }
  put_number(out + bytes_ - 4, udp_bytes);
}

void FrameHeaders::write_checksum(std::size_t payload_bytes, std::uint64_t payload_sum,
                                  std::uint8_t* out) const noexcept {
  const std::uint64_t length = htons(static_cast<std::uint16_t>(payload_bytes + kUdpHeaderBytes));
  const auto checksum = static_cast<std::uint16_t>(~folded(pseudo_sum_ + 2 * length + payload_sum));
  put_word(out + bytes_ - 2, checksum == 0 ? std::uint16_t{0xFFFF} : checksum);  // zero would say that there is none
}

bool parse_frame(const std::uint8_t* frame, std::size_t bytes, ParsedFrame* out) noexcept {
  if (bytes < kEthernetBytes) return false;
  const std::uint16_t type = number_at(frame + 12);
  if (type == 0x0800) return parse_v4(frame, bytes, out);
  return type == 0x86DD && parse_v6(frame, bytes, out);
}

}  // namespace weft::datapath::xdp
