// The sending half of a queue pair. The adapter's thread makes packets from requests, and only then reads their memory.
// On UC and UD a request is done when its last packet was sent; on RC when it is acknowledged, after retransmissions if
// needed.
#include <algorithm>
#include <cerrno>

#include "tests/softverbs/native/adapter.h"

namespace weft::softverbs {
namespace {

constexpr int kPacketsPerRound = 16;
constexpr std::int32_t kUnackedMax = 64;        // limit of an RC queue pair's packets in flight
constexpr std::int32_t kAskAckEvery = 16;       // packets of a long message after which an acknowledgment is requested
constexpr std::int64_t kFullNsMax = 5'000'000;  // longest time that a UC or UD request waits for a full peer
constexpr int kForever = 7;                     // number of RNR retries that means "no limit"

ibv_wc_opcode opcode_of(const Request& request) {
  if (request.window != nullptr) return IBV_WC_BIND_MW;
  const bool writes = request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return writes ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
}

// Checks a send request. Returns 0, or the errno value with which the request is refused.
int check(const Qp& pair, const ibv_send_wr& wanted, std::uint64_t bytes) {
  const bool writes = wanted.opcode == IBV_WR_RDMA_WRITE || wanted.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool sends = wanted.opcode == IBV_WR_SEND || wanted.opcode == IBV_WR_SEND_WITH_IMM;
  if (!sends && (!writes || pair.qp_type == IBV_QPT_UD)) return EOPNOTSUPP;
  if (wanted.num_sge < 0 || static_cast<std::uint32_t>(wanted.num_sge) > pair.send_pieces_most) return EINVAL;
  if ((wanted.send_flags & IBV_SEND_INLINE) != 0 && bytes > pair.inline_most) return EINVAL;
  if (bytes > (std::uint64_t{1} << 31)) return EINVAL;
  if (pair.qp_type == IBV_QPT_UD && (bytes > pair.mtu_bytes || wanted.wr.ud.ah == nullptr)) return EMSGSIZE;
  return 0;
}

Request request_of(const Qp& pair, const ibv_send_wr& wanted, std::uint64_t bytes) {
  Request request;
  request.id = wanted.wr_id;
  request.opcode = wanted.opcode;
  request.flags = wanted.send_flags;
  request.immediate = wanted.imm_data;
  request.bytes = static_cast<std::uint32_t>(bytes);
  if ((wanted.send_flags & IBV_SEND_INLINE) != 0) {
    for (int i = 0; i < wanted.num_sge; ++i) {
      const auto* at = reinterpret_cast<const std::uint8_t*>(wanted.sg_list[i].addr);
      request.in_line.insert(request.in_line.end(), at, at + wanted.sg_list[i].length);
    }
  } else {
    request.pieces.assign(wanted.sg_list, wanted.sg_list + wanted.num_sge);
  }
  if (pair.qp_type == IBV_QPT_UD) {
    const auto& address = *static_cast<const Address*>(wanted.wr.ud.ah);
    request.far = address.far;
    request.traffic_class = address.traffic_class;
    request.far_number = wanted.wr.ud.remote_qpn;
    // If the highest bit of the request's Q_Key is set, the queue pair's own Q_Key is used instead (InfiniBand).
    request.qkey = (wanted.wr.ud.remote_qkey >> 31) != 0 ? pair.qkey : wanted.wr.ud.remote_qkey;
  } else {
    request.far = pair.far;
    request.traffic_class = pair.traffic_class;
    request.far_number = pair.far_number;
    request.address = wanted.wr.rdma.remote_addr;
    request.rkey = wanted.wr.rdma.rkey;
  }
  request.packets = std::max<std::uint32_t>((request.bytes + pair.mtu_bytes - 1) / pair.mtu_bytes, 1);
  return request;
}

}  // namespace

int Adapter::post_send(Qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  for (; request != nullptr; request = request->next) {
    *bad = request;
    std::uint64_t bytes = 0;
    for (int i = 0; i < request->num_sge; ++i) bytes += request->sg_list[i].length;
    if (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR) return EINVAL;
    if (const int refused = check(*pair, *request, bytes); refused != 0) return refused;
    if (pair->requests.size() >= pair->send_most) return ENOMEM;
    Request made = request_of(*pair, *request, bytes);
    if (pair->state == IBV_QPS_ERR) {
      complete_request(pair, made, IBV_WC_WR_FLUSH_ERR);
    } else {
      pair->requests.push_back(std::move(made));
    }
  }
  if (!pair->requests.empty()) touch(pair);
  return 0;
}

int Adapter::bind(Qp* pair, Window* window, const ibv_mw_bind& wanted) {
  if (pair->qp_type == IBV_QPT_UD || pair->state != IBV_QPS_RTS) return EINVAL;
  if (pair->requests.size() >= pair->send_most) return ENOMEM;
  if (window->pd != pair->pd) return EPERM;
  Request request;
  request.id = wanted.wr_id;
  request.flags = wanted.send_flags;
  request.window = window;
  request.binding = wanted.bind_info;
  request.region_key = wanted.bind_info.mr != nullptr ? wanted.bind_info.mr->lkey : 0;
  request.key = window->rkey = Memory::next_key(window->rkey);
  pair->requests.push_back(std::move(request));
  touch(pair);
  return 0;
}

void Adapter::complete_request(Qp* pair, const Request& request, ibv_wc_status status) {
  const bool asked = pair->signals_all || (request.flags & IBV_SEND_SIGNALED) != 0;
  if (status == IBV_WC_SUCCESS && !asked) return;
  ibv_wc done{};
  done.wr_id = request.id;
  done.status = status;
  done.opcode = opcode_of(request);
  done.byte_len = request.bytes;
  done.qp_num = pair->qp_num;
  complete(pair->sends, done, false);
}

// Completes and removes finished requests, in the order in which they were posted.
void Adapter::retire(Qp* pair) {
  while (!pair->requests.empty() && pair->requests.front().done) {
    complete_request(pair, pair->requests.front(), IBV_WC_SUCCESS);
    pair->requests.pop_front();
    if (pair->at > 0) --pair->at;
  }
}

// Fails a request and moves the queue pair to error. Requests before it are completed first, because completions are in
// order.
void Adapter::fail_request(Qp* pair, std::size_t which, ibv_wc_status status) {
  for (std::size_t i = 0; i < which && !pair->requests.empty(); ++i) {
    complete_request(pair, pair->requests.front(), pair->requests.front().done ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
    pair->requests.pop_front();
  }
  if (!pair->requests.empty()) {
    complete_request(pair, pair->requests.front(), status);
    pair->requests.pop_front();
  }
  fail(pair, std::nullopt);
}

bool Adapter::gather(const Qp& pair, const Request& request, std::uint32_t offset, std::uint32_t bytes) noexcept {
  std::uint8_t* to = out_.data();
  if (!request.in_line.empty()) {
    std::copy_n(request.in_line.data() + offset, bytes, to);
    return true;
  }
  for (const ibv_sge& piece : request.pieces) {
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const std::uint32_t part = std::min(bytes, piece.length - offset);
    // Access is checked for every packet, because the region may be removed while a message is being sent from it.
    if (part != 0 && (!memory.allows(pair.pd, piece, false) || !memory.read(piece, offset, to, part))) return false;
    to += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

// Starts a request. Returns false if the queue pair must wait first.
bool Adapter::begin(std::int64_t now_ns, Qp* pair, Request* request) {
  request->started = true;
  request->psn = pair->next_psn;
  pair->next_psn = (pair->next_psn + request->packets) & kPsnMask;
  const std::int64_t stall_ns = stall_ns_of(settings, pair->qp_num, pair->requests_seen++);
  if (stall_ns == 0) return true;
  add(Count::stalled);
  pair->rest_until_ns = now_ns + stall_ns;
  return false;
}

bool Adapter::bind_now(Qp* pair, Request* request) {
  if (!memory.bind(request->window, request->key, request->binding, request->region_key)) {
    fail_request(pair, pair->at, IBV_WC_MW_BIND_ERR);
    return false;
  }
  request->done = request->started = true;
  request->psn = pair->next_psn;
  ++pair->at;
  retire(pair);
  return true;
}

Adapter::Left Adapter::send_packet(std::int64_t now_ns, Qp* pair, Request* request) {
  const std::uint32_t offset = request->sent * pair->mtu_bytes;
  Packet packet;
  packet.bytes = std::min(request->bytes - offset, pair->mtu_bytes);
  if (!gather(*pair, *request, offset, packet.bytes)) {
    fail_request(pair, pair->at, IBV_WC_LOC_PROT_ERR);
    return Left::failed;
  }
  const bool last = request->sent + 1 == request->packets;
  const bool writes = opcode_of(*request) == IBV_WC_RDMA_WRITE;
  const bool immediate =
      last && (request->opcode == IBV_WR_SEND_WITH_IMM || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
  const bool asks = last || (request->sent + 1) % kAskAckEvery == 0;
  unsigned flags = (request->sent == 0 ? kFirst : 0) | (last ? kLast : 0) | (writes ? kWrite : 0) |
                   (immediate ? kImmediate : 0) | (asks ? kAskAck : 0);
  if (last && (request->flags & IBV_SEND_SOLICITED) != 0) flags |= kSolicited;
  packet.service = static_cast<std::uint8_t>(pair->qp_type);
  packet.flags = static_cast<std::uint8_t>(flags);
  packet.traffic_class = request->traffic_class;
  packet.source = static_cast<const Context*>(pair->context)->gid;
  packet.destination = request->far;
  packet.from = pair->qp_num;
  packet.to = request->far_number;
  packet.psn = (request->psn + request->sent) & kPsnMask;
  packet.serial = pair->serial;
  packet.qkey = request->qkey;
  packet.immediate = request->immediate;
  packet.rkey = request->rkey;
  packet.address = request->address + offset;
  if (send(now_ns, packet, out_.data()) == Link::Sent::full) {
    if (pair->full_since_ns == 0) pair->full_since_ns = now_ns;
    if (pair->qp_type == IBV_QPT_RC || now_ns < pair->full_since_ns + kFullNsMax) return Left::waits;
    add(Count::full);
  } else {
    pair->full_since_ns = 0;
  }
  ++pair->serial;
  ++request->sent;
  return Left::went;
}

// Sends packets of the queue pair. Returns true if more could be sent now.
bool Adapter::transmit(std::int64_t now_ns, Qp* pair) {
  if (pair->state != IBV_QPS_RTS || now_ns < pair->rest_until_ns) return false;
  for (int budget = kPacketsPerRound; budget > 0 && pair->at < pair->requests.size(); --budget) {
    Request& request = pair->requests[pair->at];
    if (request.done) {  // this request is already executed, although requests before it are sent again
      ++pair->at;
      continue;
    }
    if (request.window != nullptr) {
      if (!bind_now(pair, &request)) return false;
      continue;
    }
    if (!request.started && !begin(now_ns, pair, &request)) return false;
    const std::uint32_t psn = (request.psn + request.sent) & kPsnMask;
    if (pair->qp_type == IBV_QPT_RC && psn_distance(psn, pair->unacked_psn) >= kUnackedMax) return false;
    if (send_packet(now_ns, pair, &request) != Left::went) return false;
    const bool times = pair->qp_type == IBV_QPT_RC && pair->timeout_ns != 0;
    if (times && pair->answer_due_ns == 0) pair->answer_due_ns = now_ns + pair->timeout_ns;
    if (request.sent < request.packets) continue;
    ++pair->at;
    if (pair->qp_type == IBV_QPT_RC) continue;
    request.done = true;
    retire(pair);
  }
  return pair->at < pair->requests.size();
}

// Schedules a retransmission of all packets from the oldest unacknowledged one on.
void Adapter::go_back(Qp* pair) {
  pair->at = pair->requests.size();
  for (std::size_t i = 0; i < pair->requests.size(); ++i) {
    Request& request = pair->requests[i];
    if (request.done) continue;
    if (pair->at == pair->requests.size()) pair->at = i;
    if (!request.started || request.window != nullptr) continue;
    const std::int32_t acked = psn_distance(pair->unacked_psn, request.psn);
    request.sent = acked <= 0 ? 0 : std::min(static_cast<std::uint32_t>(acked), request.packets - 1);
  }
  pair->answer_due_ns = 0;
}

// Handles an acknowledgment of all packets before `next_psn`.
void Adapter::acknowledge(std::int64_t now_ns, Qp* pair, std::uint32_t next_psn) {
  if (psn_distance(next_psn, pair->unacked_psn) <= 0 || psn_distance(next_psn, pair->next_psn) > 0) return;
  pair->unacked_psn = next_psn;
  pair->retries_left = pair->retries;
  pair->not_ready_left = pair->not_ready_retries;
  for (Request& request : pair->requests) {
    if (!request.started || request.window != nullptr) continue;
    if (psn_distance((request.psn + request.packets) & kPsnMask, next_psn) > 0) break;
    request.done = true;
  }
  // Skips acknowledged requests, even if they were about to be sent again.
  while (pair->at < pair->requests.size() && pair->requests[pair->at].done) ++pair->at;
  const bool waits = psn_distance(pair->next_psn, next_psn) > 0;
  pair->answer_due_ns = waits && pair->timeout_ns != 0 ? now_ns + pair->timeout_ns : 0;
  retire(pair);
}

void Adapter::on_answer(std::int64_t now_ns, Qp* pair, const Packet& packet) {
  if (pair->qp_type != IBV_QPT_RC || pair->state != IBV_QPS_RTS) return;
  const std::uint32_t named = packet.psn;
  acknowledge(now_ns, pair, packet.kind == Kind::ack ? (named + 1) & kPsnMask : named);
  if (packet.kind == Kind::ack || named != pair->unacked_psn || pair->requests.empty()) return;
  switch (packet.kind) {
    case Kind::nak_sequence:
      go_back(pair);
      break;
    case Kind::nak_not_ready:
      if (pair->not_ready_retries != kForever && pair->not_ready_left-- == 0) {
        fail_request(pair, 0, IBV_WC_RNR_RETRY_EXC_ERR);
        break;
      }
      go_back(pair);
      pair->rest_until_ns = now_ns + std::max<std::int64_t>(static_cast<std::int64_t>(packet.address), 1);
      break;
    default:
      fail_request(pair, 0, packet.kind == Kind::nak_access ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
      break;
  }
}

void Adapter::on_time(std::int64_t now_ns, Qp* pair) {
  if (pair->answer_due_ns == 0 || now_ns < pair->answer_due_ns || pair->state != IBV_QPS_RTS) return;
  if (pair->retries_left-- == 0) {
    fail_request(pair, 0, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  go_back(pair);
}

std::int64_t Adapter::due_ns(std::int64_t now_ns, const Qp& pair) const noexcept {
  std::int64_t due = pair.answer_due_ns == 0 ? INT64_MAX : pair.answer_due_ns;
  if (pair.rest_until_ns > now_ns) due = std::min(due, pair.rest_until_ns);
  if (pair.full_since_ns != 0 && pair.qp_type != IBV_QPT_RC) due = std::min(due, pair.full_since_ns + kFullNsMax);
  return due;
}

}  // namespace weft::softverbs
