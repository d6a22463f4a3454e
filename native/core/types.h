// The words the whole core shares: integers with short names, limits with their reasons, and the configuration of a
// stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "native/policy/policy.h"
#include "native/telemetry/counters.h"
#include "native/wire/burst.h"

namespace weft::core {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

inline constexpr i64 kNever = std::numeric_limits<i64>::max();
inline constexpr u32 kNone = 0xFFFF'FFFFu;
inline constexpr std::size_t kMaxPaths = policy::kMaxPaths;  // a path is a byte on the wire
using telemetry::EngineCells;
using telemetry::FlowCells;
using telemetry::FlowCounters;
using telemetry::PathCells;
using telemetry::PeerCells;
using wire::kMaxBurstSegments;
using wire::Payload;
using wire::RxDatagram;
using wire::TxBurst;
inline constexpr u64 kWindowSegments = 16'384;         // what a sender may have in flight and a receiver tracks
inline constexpr u64 kMessageBytesMax = u64{1} << 40;  // NCCL's own limit (1 TiB)
inline constexpr u64 kNoCredit = ~u64{0};              // an acknowledgment's grant when no credit is in force

// The full number whose low 32 bits arrived, nearest to `near`.
constexpr u64 expand32(u64 near, u32 low) noexcept {
  const auto delta = static_cast<std::int32_t>(low - static_cast<u32>(near));
  return near + static_cast<u64>(static_cast<i64>(delta));
}

struct PolicyChoice {
  const policy::Descriptor* descriptor = nullptr;
  const void* params = nullptr;  // null: the descriptor's defaults
  explicit operator bool() const noexcept { return descriptor != nullptr; }
};

struct StackConfig {
  u64 seed = 1;             // of every draw the stack makes
  u64 eager_bytes = 8192;   // a message up to this long goes before its receive is advertised
  u64 eager_slots = 16;     // how many such messages a receiver holds without a posted receive
  u64 eager_blocks = 2048;  // of all flows together: 16 MB of such messages
  i64 window_bytes_max = 16 << 20;
  i64 rto_ns_min = 1'000'000;
  i64 rto_ns_max = 1'000'000'000;
  i64 peer_silence_ns = 20'000'000'000;
  // A silent peer and a flow that makes no progress end only when the owner says so, by fail_peer(), give_up_peer() and
  // give_up_flow(): it is told by events, and knows more than the paths do.
  bool owner_judges = false;
  i64 link_bytes_per_s = 0;  // of the receiving ports, when the OS says; for credit policies
  // An acknowledgment waits for this many bytes or this long, whichever is first: each costs both ends a system call. A
  // duplicate, a mark, a finished message or a grant does not wait.
  u64 ack_bytes = 256 * 1024;
  i64 ack_delay_ns = 30'000;
  bool payload_crc = false;
  bool place_payload = true;  // false: the datapath put the bytes in place (one-sided), or nobody needs them
  PolicyChoice window, path, loss, credit;  // credit may be empty; the others fall back to `fixed`
  // Where the stack counts, and below peers, paths and flows; null: in storage of its own.
  EngineCells* counters = nullptr;
};

struct PeerConfig {
  u32 remote_peer = 0;  // the peer's own index and token for us: what our probes carry
  u64 remote_token = 0;
  u64 local_token = 0;  // what its probes must carry
  u16 path_count = 1;
  u16 segment_bytes = 1472;         // largest datagram on every path, our header included
  u32 train_bytes_max = 1472;       // largest burst the datapath takes in one go
  i64 port_buffer_bytes = 1 << 20;  // in flight on one path at most: what the peer's socket buffer holds
  i64 rtt_ns = 0;                   // known of every path from before; 0: probes find out
  i64 rtt_expected_ns = 0;          // about what it will be, for timers until the first sample; 0: nobody knows
  bool payload_crc = false;         // one of the two ends wants it
  // Paths may turn out to carry less than `segment_bytes`, without a word: what they carry is found out
  // (size_search.h). The fragments of a segment may then make a burst longer than train_bytes_max, by their headers.
  bool search_size = false;
  PolicyChoice path;  // empty: the stack's
  PeerCells* counters = nullptr;
  PathCells* path_counters = nullptr;  // one a path
};

// What may go before its receive is known; the two ends must agree on it.
struct EagerLimits {
  u64 bytes = 0;
  u64 slots = 0;
};

struct FlowConfig {
  u32 peer = 0;
  u32 remote_flow = 0;  // the peer's own index and token for this flow: what our packets carry
  u64 remote_token = 0;
  u64 local_token = 0;  // what packets to us must carry
  u8 stripe = 0;        // which of `stripes` flows of the connection this is
  u8 stripes = 1;
  PolicyChoice window, loss;  // empty: the stack's
  PolicyChoice credit;        // when own_credit; empty: none
  bool own_credit = false;
  u64 speculative_bytes = ~u64{0};  // not ~0: credit is in force from the start, and this is granted unasked
  u64 eager_bytes_max = ~u64{0};    // the other end's limits; the smaller of both is in force
  u64 eager_slots_max = ~u64{0};
  FlowCells* counters = nullptr;
};

inline EagerLimits eager_limits(const StackConfig& stack, const FlowConfig& flow) noexcept {
  return {stack.eager_bytes < flow.eager_bytes_max ? stack.eager_bytes : flow.eager_bytes_max,
          stack.eager_slots < flow.eager_slots_max ? stack.eager_slots : flow.eager_slots_max};
}

}  // namespace weft::core
