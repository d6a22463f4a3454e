// Integer aliases, limits and configuration structures that the whole core shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "native/core/defaults.h"
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
inline constexpr std::size_t kMaxPaths = policy::kMaxPaths;  // the wire carries a path's index in one byte
using telemetry::EngineCells;
using telemetry::FlowCells;
using telemetry::FlowCounters;
using telemetry::PathCells;
using telemetry::PeerCells;
using wire::kMaxBurstSegments;
using wire::Payload;
using wire::RxDatagram;
using wire::TxBurst;
inline constexpr u64 kWindowSegments = 16'384;         // in flight at a sender, and in a receiver's bitmap, at most
inline constexpr u64 kMessageBytesMax = u64{1} << 40;  // NCCL's own limit (1 TiB)
inline constexpr u64 kNoCredit = ~u64{0};              // the grant in an acknowledgment while no credit limit applies

// The 64-bit number closest to `near` whose low 32 bits are `low`.
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
  u64 seed = 1;                             // of the stack's random generator
  u64 eager_bytes = defaults::kEagerBytes;  // longest message that may be sent before its receive is advertised
  u64 eager_slots = defaults::kEagerSlots;  // how many such messages a receiver keeps before their receives are posted
  u64 eager_blocks = 2048;                  // for all flows of the stack; 16 MB with the default size
  i64 window_bytes_max = defaults::kWindowBytesMax;
  i64 rto_ns_min = defaults::kRtoNsMin;
  i64 rto_ns_max = defaults::kRtoNsMax;
  i64 peer_silence_ns = defaults::kPeerSilenceNs;
  // The owner decides when a silent peer or a flow without progress ends, by fail_peer(), give_up_peer() and
  // give_up_flow(). It is told by events, and has evidence that the data paths lack (the control socket's).
  bool owner_judges = false;
  i64 link_bytes_per_s = 0;  // of the receiving ports, where the OS reports it; used by credit policies
  // An acknowledgment is delayed until this many bytes have arrived or this much time has passed, because each one
  // costs both ends a system call. A duplicate segment, an ECN mark, a completed message or a new grant is acknowledged
  // at once.
  u64 ack_bytes = 256 * 1024;
  i64 ack_delay_ns = 30'000;
  bool payload_crc = false;
  bool place_payload = true;  // false: the payload is in place already (one-sided write), or is not needed
  PolicyChoice window, path, loss, credit;  // credit may be empty; an empty choice of the others means `fixed`
  // The stack's counters; null: in storage of its own. The counters of PeerConfig and FlowConfig follow the same rule.
  EngineCells* counters = nullptr;
};

struct PeerConfig {
  u32 remote_peer = 0;  // the peer's index and token for this stack; our probes carry them
  u64 remote_token = 0;
  u64 local_token = 0;  // the token that the peer's probes must carry
  u16 path_count = 1;
  u16 segment_bytes = 1472;         // largest datagram on every path, including our header
  u32 train_bytes_max = 1472;       // largest burst that the datapath accepts at once
  i64 port_buffer_bytes = 1 << 20;  // limit in flight on one path: the peer's socket buffer
  i64 rtt_ns = 0;                   // round trip of every path, if known; 0: probes measure it
  i64 rtt_expected_ns = 0;          // estimate for timers until the first sample; 0: none
  bool payload_crc = false;         // at least one end asked for payload checksums
  // Some paths may silently drop datagrams of `segment_bytes`: search for the size that they carry (size_search.h). A
  // segment sent as fragments may then exceed train_bytes_max by the fragments' headers.
  bool search_size = false;
  PolicyChoice path;  // empty: the stack's policy
  PeerCells* counters = nullptr;
  PathCells* path_counters = nullptr;  // array with one entry per path
};

// Which messages may be sent before their receive is known. Both ends must use the same limits.
struct EagerLimits {
  u64 bytes = 0;
  u64 slots = 0;
};

struct FlowConfig {
  u32 peer = 0;
  u32 remote_flow = 0;  // the peer's index and token for this flow; our packets carry them
  u64 remote_token = 0;
  u64 local_token = 0;  // the token that packets to this flow must carry
  u8 stripe = 0;        // index of this flow among the `stripes` flows of its connection
  u8 stripes = 1;
  PolicyChoice window, loss;  // empty: the stack's policy
  PolicyChoice credit;        // used if own_credit is set; empty: no credit policy
  bool own_credit = false;
  u64 speculative_bytes = ~u64{0};  // may be sent before the first grant; ~0: credit is not in force at the start
  u64 eager_bytes_max = ~u64{0};    // the other end's limits; the smaller of the two applies
  u64 eager_slots_max = ~u64{0};
  FlowCells* counters = nullptr;
};

inline EagerLimits eager_limits(const StackConfig& stack, const FlowConfig& flow) noexcept {
  return {stack.eager_bytes < flow.eager_bytes_max ? stack.eager_bytes : flow.eager_bytes_max,
          stack.eager_slots < flow.eager_slots_max ? stack.eager_slots : flow.eager_slots_max};
}

}  // namespace weft::core
