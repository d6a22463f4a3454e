// The packets between two processes: a header and at most one MTU of payload. Both processes run on one host with the
// same build, so the header is a plain struct. Packets are never damaged.
#pragma once

#include <cstdint>

#include "native/datapath/verbs/verbs_abi.h"

namespace weft::softverbs {

inline constexpr std::uint32_t kMagic = 0x57534654;
inline constexpr std::uint32_t kPsnMask = 0xFF'FFFF;
inline constexpr std::uint32_t kMtuBytesMax = 4096;
inline constexpr std::uint32_t kGrhBytes = 40;

enum class Kind : std::uint8_t { data, ack, nak_sequence, nak_not_ready, nak_invalid, nak_access };
enum Flags : std::uint8_t { kFirst = 1, kLast = 2, kWrite = 4, kImmediate = 8, kSolicited = 16, kAskAck = 32 };

struct Packet {
  std::uint32_t magic = kMagic;
  Kind kind = Kind::data;
  std::uint8_t service = 0;  // type of the queue pair (ibv_qp_type)
  std::uint8_t flags = 0;
  std::uint8_t traffic_class = 0;
  ibv_gid source{}, destination{};
  std::uint32_t from = 0, to = 0;  // queue pair numbers
  std::uint32_t psn = 0;
  // Number of the queue pair's transmission, counting retransmissions; a seed for the random faults of this packet.
  std::uint32_t serial = 0;
  std::uint32_t qkey = 0, immediate = 0, rkey = 0;
  std::uint32_t bytes = 0;    // size of the payload
  std::uint64_t address = 0;  // where an RDMA write must put the payload
};
static_assert(sizeof(Packet) == 80);

// Distance from packet number `b` to `a`, modulo 2^24. Negative if `a` comes before `b`.
constexpr std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) noexcept {
  const std::uint32_t ahead = (a - b) & kPsnMask;
  return ahead > kPsnMask / 2 ? static_cast<std::int32_t>(ahead) - static_cast<std::int32_t>(kPsnMask + 1)
                              : static_cast<std::int32_t>(ahead);
}

}  // namespace weft::softverbs
