// The verbs objects of this provider. Each begins with the struct that callers see. They are accessed only under the
// adapter's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "native/datapath/verbs/verbs_abi.h"
#include "tests/softverbs/native/device_memory.h"
#include "tests/softverbs/native/packet.h"

namespace weft::softverbs {

struct Context : ibv_context {
  Context() : ibv_context{} {}
  ibv_gid gid{};
  std::deque<ibv_async_event> events;
};

struct Domain : ibv_pd {
  Domain() : ibv_pd{} {}
};

struct Region : ibv_mr {
  Region() : ibv_mr{} {}
  std::uint64_t first = 0;  // address that requests use for the region's first byte
  int access = 0;
  int windows = 0;                       // number of windows bound to the region
  std::shared_ptr<DeviceMemory> device;  // the GPU of the region; null: host memory
};

struct Window : ibv_mw {
  Window() : ibv_mw{} {}
  Region* region = nullptr;  // the region that the window is bound to; null: closed
  std::uint64_t first = 0, bytes = 0;
  unsigned access = 0;
  // The valid key. The field `rkey`, which callers see, already has the key of the latest bind request.
  std::uint32_t key = 0;
};

struct Channel : ibv_comp_channel {
  Channel() : ibv_comp_channel{} {}
  std::deque<struct Cq*> rung;
};

struct Cq : ibv_cq {
  Cq() : ibv_cq{} {}
  Channel* bell = nullptr;
  std::deque<ibv_wc> done;
  // Number of entries in `done`; lets callers see without the lock that the queue is empty.
  std::atomic<std::size_t> count{0};
  std::size_t most = 0;
  bool armed = false, solicited_only = false, overrun = false;
};

struct Receive {
  std::uint64_t id = 0;
  std::vector<ibv_sge> pieces;
};
struct Receives {
  std::deque<Receive> posted;
  std::size_t most = 0;
};

struct Srq : ibv_srq {
  Srq() : ibv_srq{} {}
  Receives receives;
};

struct Address : ibv_ah {
  Address() : ibv_ah{} {}
  ibv_gid far{};
  std::uint8_t traffic_class = 0;
};

// A work request in a send queue.
struct Request {
  std::uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;
  std::uint32_t immediate = 0, rkey = 0;
  std::uint64_t address = 0;
  std::vector<ibv_sge> pieces;
  std::vector<std::uint8_t> in_line;
  std::uint32_t bytes = 0;
  ibv_gid far{};  // the destination's GID
  std::uint32_t far_number = 0, qkey = 0;
  std::uint8_t traffic_class = 0;
  Window* window = nullptr;  // for bind requests
  ibv_mw_bind_info binding{};
  // The region is kept as its key, because it may be gone when the request is executed.
  std::uint32_t region_key = 0;
  std::uint32_t key = 0;
  bool started = false, done = false;
  std::uint32_t psn = 0, packets = 0, sent = 0;
};

struct Qp : ibv_qp {
  Qp() : ibv_qp{} {}
  Cq *sends = nullptr, *completes_to = nullptr;
  Receives own;
  std::uint32_t send_most = 0, send_pieces_most = 0, receive_pieces_most = 0, inline_most = 0;
  bool signals_all = false;
  // Attributes that modify_qp() sets.
  int access = 0;
  std::uint32_t far_number = 0, qkey = 0, mtu_bytes = kMtuBytesMax;
  ibv_gid far{};
  std::uint8_t traffic_class = 0;
  std::int64_t timeout_ns = 0, not_ready_ns = 0;
  int retries = 0, not_ready_retries = 0;
  // State of the sending half. requests[at] is sent next; those before it wait for their acknowledgment (RC only).
  std::deque<Request> requests;
  std::size_t at = 0;
  std::uint32_t next_psn = 0, unacked_psn = 0;
  std::uint32_t serial = 0;
  std::uint64_t requests_seen = 0;
  std::int64_t rest_until_ns = 0;  // nothing is sent before this time, after a stall fault or an RNR NAK
  std::int64_t answer_due_ns = 0;  // when the retransmission timeout is due; 0: no timeout runs
  std::int64_t full_since_ns = 0;  // since when the peer's buffer is full; 0: it has room
  int retries_left = 0, not_ready_left = 0;
  // State of the receiving half.
  std::uint32_t expected_psn = 0;
  bool refused_gap = false, in_message = false;
  std::optional<Receive> receive;  // the receive request that the message in progress uses
  std::uint32_t message_bytes = 0, message_immediate = 0;
};

inline Receives& receives_of(Qp& pair) noexcept {
  return pair.srq != nullptr ? static_cast<Srq*>(pair.srq)->receives : pair.own;
}

}  // namespace weft::softverbs
