// Builds and parses Ethernet frames that hold a UDP datagram over IPv4 or IPv6, with their checksums (RFC 768, 791,
// 1071, 8200).
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/datapath/address.h"

namespace weft::datapath::xdp {

inline constexpr std::size_t kMacBytes = 6, kEthernetBytes = 14, kUdpHeaderBytes = 8;
inline constexpr std::size_t kHeadersBytesMax = kEthernetBytes + 40 + kUdpHeaderBytes;

constexpr std::size_t headers_bytes(bool v6) noexcept { return kEthernetBytes + (v6 ? 40 : 20) + kUdpHeaderBytes; }

// Sums of 16-bit words in ones' complement, of memory in the host's byte order. The sum is folded when it is complete;
// each piece but the last must have an even number of bytes.
std::uint64_t sum_of(const std::uint8_t* from, std::size_t bytes) noexcept;
std::uint64_t copy_and_sum(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) noexcept;
std::uint16_t folded(std::uint64_t sum) noexcept;

// The headers that all datagrams of one path have in common.
class FrameHeaders {
 public:
  // Both addresses have ports and are of the same family. `traffic_class`: DSCP and ECN bits.
  void set(const SocketAddress& from, const SocketAddress& to, std::uint8_t traffic_class) noexcept;
  void set_macs(const std::uint8_t* from, const std::uint8_t* to) noexcept;
  std::size_t bytes() const noexcept { return bytes_; }
  // Writes the headers of a datagram with `payload_bytes` to `out`, but for the UDP checksum.
  void write(std::size_t payload_bytes, std::uint8_t* out) const noexcept;
  // Writes the UDP checksum behind write(). `payload_sum`: the sum of the payload.
  void write_checksum(std::size_t payload_bytes, std::uint64_t payload_sum, std::uint8_t* out) const noexcept;

 private:
  std::uint8_t template_[kHeadersBytesMax] = {};
  std::size_t bytes_ = 0;
  bool v6_ = false;
  std::uint64_t ip_sum_ = 0;      // of the IPv4 header without its length
  std::uint64_t pseudo_sum_ = 0;  // of addresses, protocol and ports
};

struct ParsedFrame {
  bool v6 = false;
  const std::uint8_t* to = nullptr;  // the destination's IP address, of 4 or 16 bytes
  std::uint16_t to_port = 0;
  std::size_t payload_offset = 0, payload_bytes = 0;
  bool congestion_experienced = false;
};

// Parses a whole frame. False if it is not a UDP datagram, has IP options or extension headers, is a fragment, has
// lengths that contradict each other, or a wrong checksum.
bool parse_frame(const std::uint8_t* frame, std::size_t bytes, ParsedFrame* out) noexcept;

}  // namespace weft::datapath::xdp
