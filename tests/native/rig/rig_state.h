// The rig's state for each message and each end, with small helpers. Private to the rig's files.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "tests/native/rig/rig.h"
#include "tests/native/rig/rig_stage.h"
#include "tests/native/rig/rig_windows.h"

namespace weft::sim {

inline constexpr u32 kStripesMax = 16;
inline constexpr u64 kGuardBytes = 64;  // bytes after a receive's capacity, which must not change
inline constexpr u8 kUntouched = 0xA5;  // content of a receive buffer before any byte arrives
inline constexpr u8 kReused = 0x5A;     // content of a buffer after it was returned to the caller
inline constexpr u64 kRingBytes = 32'768, kPieceBytes = 8'192;
inline constexpr i64 kStageNs = 50'000;  // time between two polls of a copier that has something to copy

struct Rig::Transfer {
  core::ReceiveTicket ticket;  // must be the first member: of() converts its address to a Transfer
  u64 number = 0;
  int from = 0;
  u64 bytes = 0, capacity_bytes = 0, seed = 0;
  i64 send_ns = 0, receive_ns = 0;
  std::vector<u8> send_buffer, receive_buffer;
  u32 next_send_stripe = 0, next_receive_stripe = 0, stripes_sent = 0;
  bool send_finished = false, receive_finished = false;
  std::unique_ptr<Staging> outgoing, incoming;  // bounce buffers; null: none are used

  static Transfer* of(core::ReceiveTicket* ticket) noexcept { return reinterpret_cast<Transfer*>(ticket); }
};

struct Rig::Side {
  explicit Side(const core::StackConfig& config) : stack(config) {}
  core::Stack stack;
  u32 peer = 0;
  std::vector<u32> flows;
  std::vector<std::unique_ptr<Transfer>> owned;  // the transfers that this end sends
  std::vector<Transfer*> sends, receives;
  std::size_t next_send = 0, next_receive = 0;
  u64 received = 0;
  i64 arrived_bytes = 0;  // bytes of all datagrams that were delivered undamaged
  u32 flows_closed = 0, flows_peer_closed = 0;
  u64 held = 0;  // number of messages that had arrived when the peer closed
  bool failed = false;
  Status first_failure = Status::ok;
  std::unordered_map<u64, u8> last_path;  // (flow, seq) -> path of its latest transmission
  Windows windows;
};

inline u64 token(const Schedule& schedule, int end, u32 flow) noexcept {
  return core::Random(schedule.seed * 1000 + static_cast<u64>(end) * 100 + flow).next();
}

inline core::StackConfig stack_config(const Schedule& schedule, int end) {
  core::StackConfig config;
  config.seed = schedule.seed * 4 + static_cast<u64>(end);
  config.eager_bytes = schedule.eager_bytes;
  config.eager_slots = schedule.eager_slots;
  config.window_bytes_max = schedule.window_bytes_max;
  config.rto_ns_max = schedule.rto_ns_max;
  config.peer_silence_ns = schedule.peer_silence_ns;
  // Late reads are tested without the payload CRC, so that only the rules of P-1 keep wrong bytes out. If packets can
  // be corrupted, the CRC is needed in place of the checks of a NIC.
  config.payload_crc = !schedule.late_reads || schedule.faults.corrupt > 0;
  config.window = schedule.window;
  config.path = schedule.path;
  config.loss = schedule.loss;
  config.credit = schedule.credit;
  return config;
}

// The content of a message. Any eight bytes identify their message and their position in it.
inline u8 content(u64 seed, u64 offset) noexcept {
  const u64 word = (seed + offset / 8) * 0x9E3779B97F4A7C15u;
  return static_cast<u8>((word ^ (word >> 29)) >> (8 * (offset % 8)));
}
inline void fill(u8* data, u64 bytes, u64 seed) noexcept {
  for (u64 i = 0; i < bytes; ++i) data[i] = content(seed, i);
}
inline bool matches(const u8* data, u64 bytes, u64 seed) noexcept {
  for (u64 i = 0; i < bytes; ++i) {
    if (data[i] != content(seed, i)) return false;
  }
  return true;
}

u64 draw_bytes(const Schedule& schedule, core::Random& random) noexcept;

}  // namespace weft::sim
