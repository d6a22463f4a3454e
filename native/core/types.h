// Integer types, limits and configuration structures of the core.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

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
inline constexpr std::size_t kMaxPaths = policy::kMaxPaths;  // packets carry a path's index in one byte
using telemetry::EngineCells;
using telemetry::FlowCells;
using telemetry::FlowCounters;
using telemetry::PathCells;
using telemetry::PeerCells;
using wire::kMaxBurstSegments;
using wire::Payload;
using wire::RxDatagram;
using wire::TxBurst;
inline constexpr u64 kWindowSegments = 16'384;         // maximum number of segments in flight, and of bits in a bitmap
inline constexpr u64 kMessageBytesMax = u64{1} << 40;  // NCCL's limit of a message's size (1 TiB)
inline constexpr u64 kNoCredit = ~u64{0};              // grant in an acknowledgment: credit does not limit the sender

// Returns the 64-bit number closest to `near` whose low 32 bits are `low`.
constexpr u64 expand32(u64 near, u32 low) noexcept {
  const auto delta = static_cast<std::int32_t>(low - static_cast<u32>(near));
  return near + static_cast<u64>(static_cast<i64>(delta));
}

struct PolicyChoice {
  const policy::Descriptor* descriptor = nullptr;
  const void* params = nullptr;  // null: the policy's default parameters
  explicit operator bool() const noexcept { return descriptor != nullptr; }
};

struct StackConfig {
  u64 seed = 1;                             // seed of the stack's random number generator
  u64 eager_bytes = defaults::kEagerBytes;  // longest message that may be sent before its receive is advertised
  u64 eager_slots = defaults::kEagerSlots;  // eager messages that a receiver keeps without a posted receive
  u64 eager_blocks = 2048;                  // limit of blocks for eager messages, all flows together; 16 MB by default
  i64 window_bytes_max = defaults::kWindowBytesMax;
  i64 rto_ns_min = defaults::kRtoNsMin;
  i64 rto_ns_max = defaults::kRtoNsMax;
  i64 peer_silence_ns = defaults::kPeerSilenceNs;
  // true: the stack only reports silent peers and flows without progress. The owner, which also has a control socket to
  // the peer, ends them by fail_peer(), give_up_peer() and give_up_flow().
  bool external_failure_detector = false;
  i64 link_bytes_per_s = 0;  // speed of the receiving ports for credit policies; 0: unknown
  // An acknowledgment is delayed until this many bytes have arrived or `ack_delay_ns` has passed, because it costs both
  // ends a system call. A duplicate segment, an ECN mark, a completed message or a new grant is acknowledged at once.
  u64 ack_bytes = 256 * 1024;
  i64 ack_delay_ns = 30'000;
  bool payload_crc = false;
  bool place_payload = true;                // false: payloads are in place already (RDMA write) or not needed
  PolicyChoice window, path, loss, credit;  // an empty choice means `fixed`, or for credit, no policy
  // The counters that the stack increments; null: counters of its own. The same holds for PeerConfig and FlowConfig.
  EngineCells* counters = nullptr;
};

struct PeerConfig {
  u32 remote_peer = 0;  // index and token that probes to the peer must carry
  u64 remote_token = 0;
  u64 local_token = 0;  // token that probes from the peer must carry
  u16 path_count = 1;
  u16 segment_bytes = 1472;         // largest datagram, including weft's header
  u32 train_bytes_max = 1472;       // largest burst that the datapath accepts at once
  i64 port_buffer_bytes = 1 << 20;  // maximum number of bytes in flight on one path: the peer's socket buffer
  i64 rtt_ns = 0;                   // known round-trip time of all paths; 0: unknown, probes measure it
  i64 rtt_expected_ns = 0;          // estimated round-trip time until the first sample; 0: none
  bool payload_crc = false;         // one end or both requested payload checksums
  // Size of an unauthenticated peer's request to open a connection. Until the peer answers, at most a multiple of what
  // it sent is sent to it (answer_gate.h). -1: no limit, as this end sent the request or the peer is authenticated.
  i64 open_bytes = -1;
  // Search for the datagram size that the paths carry, because some may drop datagrams of `segment_bytes`
  // (size_search.h). The fragments of a segment may then exceed train_bytes_max by their headers.
  bool search_size = false;
  PolicyChoice path;  // empty: the stack's default policy
  PeerCells* counters = nullptr;
  PathCells* path_counters = nullptr;  // array with one entry per path, or null
};

// Limits of messages that may be sent before their receive is advertised. Both ends must use the same limits, because
// each end decides by them which messages are eager.
struct EagerLimits {
  u64 bytes = 0;
  u64 slots = 0;
};

// Progress of a connection, for those of its flows that carry few of its messages: they need not advertise receives, or
// keep advertisements, of messages that other flows carried. The threads that post sends and receives set it.
struct Passed {
  std::atomic<u64> sends{0};     // all sends with smaller numbers are complete
  std::atomic<u64> receives{0};  // all receives with smaller numbers are complete; the peer's `sends` is no smaller
};

struct FlowConfig {
  u32 peer = 0;
  u32 remote_flow = 0;  // index and token that packets to the peer must carry
  u64 remote_token = 0;
  u64 local_token = 0;  // token that packets to this flow must carry
  u8 stripe = 0;        // index of this flow among the `stripes` flows of its connection
  u8 stripes = 1;
  PolicyChoice window, loss;  // empty: the stack's default policy
  PolicyChoice credit;        // used if own_credit is true; empty: no credit policy
  bool own_credit = false;
  u64 speculative_bytes = ~u64{0};  // bytes that may be sent before the first grant; ~0: no limit
  u64 eager_bytes_max = ~u64{0};    // the other end's limits of eager messages; the smaller limit of both ends applies
  u64 eager_slots_max = ~u64{0};
  FlowCells* counters = nullptr;
  // Which sends and receives of the connection are complete on all flows; null: unknown to this flow.
  std::shared_ptr<const Passed> passed;
};

inline EagerLimits eager_limits(const StackConfig& stack, const FlowConfig& flow) noexcept {
  return {stack.eager_bytes < flow.eager_bytes_max ? stack.eager_bytes : flow.eager_bytes_max,
          stack.eager_slots < flow.eager_slots_max ? stack.eager_slots : flow.eager_slots_max};
}

// A function that only prefetches calls this first: gcc takes it for one without effects, and drops calls of it.
inline void keep_prefetches() noexcept { asm volatile(""); }
// Prefetches the bytes up to `end` into the second-level cache.
inline void prefetch(const void* from, const void* end) noexcept {
  keep_prefetches();
  const auto* at = static_cast<const char*>(from);
  for (; at < end; at += 64) __builtin_prefetch(at, 0, 2);
  __builtin_prefetch(static_cast<const char*>(end) - 1, 0, 2);
}

}  // namespace weft::core
