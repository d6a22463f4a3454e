// The receiving half of a queue pair: it checks packets, writes them to memory, and acknowledges them. UC accepts the
// first packet of a message at any time, so late or repeated messages are delivered again, as a NIC does. RC accepts
// each packet once and in order. Messages refused on UC or UD are dropped silently.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/softverbs/native/adapter.h"

namespace weft::softverbs {

int Adapter::post_receive(Receives* to, std::uint32_t pieces_most, const ibv_recv_wr* request) {
  if (request->num_sge < 0 || static_cast<std::uint32_t>(request->num_sge) > pieces_most) return EINVAL;
  if (to->posted.size() >= to->most) return ENOMEM;
  to->posted.push_back({request->wr_id, {request->sg_list, request->sg_list + request->num_sge}});
  return 0;
}

void Adapter::flush_receives(Qp* pair) {
  Packet none;
  while (pair->receive || !pair->own.posted.empty()) {
    if (!take_receive(pair)) return;
    complete_receive(pair, none, IBV_WC_WR_FLUSH_ERR, 0);
  }
}

bool Adapter::take_receive(Qp* pair) {
  if (pair->receive) return true;  // uses the receive request of an earlier message that was cut short
  Receives& from = receives_of(*pair);
  if (from.posted.empty()) return false;
  pair->receive = std::move(from.posted.front());
  from.posted.pop_front();
  return true;
}

bool Adapter::scatter(const Qp& pair, const Receive& receive, std::uint32_t offset, const std::uint8_t* from,
                      std::uint32_t bytes) {
  for (const ibv_sge& piece : receive.pieces) {
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const std::uint32_t part = std::min(bytes, piece.length - offset);
    if (part != 0 && (!memory.allows(pair.pd, piece, true) || !memory.write(piece, offset, from, part))) return false;
    from += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

static std::uint64_t room_of(const Receive& receive) {
  std::uint64_t bytes = 0;
  for (const ibv_sge& piece : receive.pieces) bytes += piece.length;
  return bytes;
}

void Adapter::complete_receive(Qp* pair, const Packet& packet, ibv_wc_status status, std::uint32_t bytes) {
  ibv_wc done{};
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  done.wr_id = pair->receive->id;
  done.status = status;
  const bool writes = (packet.flags & kWrite) != 0;
  done.opcode = writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  done.byte_len = bytes;
  done.qp_num = pair->qp_num;
  if ((packet.flags & kImmediate) != 0) {
    done.imm_data = packet.immediate;
    done.wc_flags |= IBV_WC_WITH_IMM;
  }
  if (pair->qp_type == IBV_QPT_UD) {
    done.src_qp = packet.from;
    done.wc_flags |= IBV_WC_GRH;
  }
  pair->receive.reset();
  complete(pair->completes_to, done, (packet.flags & kSolicited) != 0);
}

void Adapter::on_datagram(Qp* pair, const Packet& packet, const std::uint8_t* payload) {
  if (packet.kind != Kind::data || packet.qkey != pair->qkey || packet.bytes > pair->mtu_bytes) {
    add(Count::refused);
    return;
  }
  if (!take_receive(pair)) return;
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  if (room_of(*pair->receive) < std::uint64_t{kGrhBytes} + packet.bytes) return;
  // Builds the IPv6 header that precedes a UD message: version, class and flow; length and next header; source and
  // destination.
  std::uint8_t route[kGrhBytes] = {0x60};
  route[0] = static_cast<std::uint8_t>(0x60 | packet.traffic_class >> 4);
  route[1] = static_cast<std::uint8_t>(packet.traffic_class << 4);
  std::memcpy(route + 8, packet.source.raw, sizeof packet.source.raw);
  std::memcpy(route + 24, packet.destination.raw, sizeof packet.destination.raw);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  const bool placed = scatter(*pair, *pair->receive, 0, route, kGrhBytes) &&
                      // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
                      scatter(*pair, *pair->receive, kGrhBytes, payload, packet.bytes);
  complete_receive(pair, packet, placed ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR, kGrhBytes + packet.bytes);
  if (!placed) fail(pair, IBV_EVENT_QP_FATAL);
}

void Adapter::reply(std::int64_t now_ns, Qp* pair, Kind kind, std::uint32_t psn) {
  if (pair->qp_type != IBV_QPT_RC) return;
  Packet packet;
  packet.kind = kind;
  packet.service = static_cast<std::uint8_t>(pair->qp_type);
  packet.source = static_cast<const Context*>(pair->context)->gid;
  packet.destination = pair->far;
  packet.from = pair->qp_num;
  packet.to = pair->far_number;
  packet.psn = psn & kPsnMask;
  packet.serial = pair->serial++;
  packet.address = kind == Kind::nak_not_ready ? static_cast<std::uint64_t>(pair->not_ready_ns) : 0;
  answer(now_ns, packet);
}

// Whether the packet has the expected sequence number. If not, RC sends an acknowledgment or a NACK.
bool Adapter::in_order(std::int64_t now_ns, Qp* pair, const Packet& packet) {
  const std::int32_t ahead = psn_distance(packet.psn, pair->expected_psn);
  if (pair->qp_type == IBV_QPT_UC) {
    if ((packet.flags & kFirst) == 0 && (ahead != 0 || !pair->in_message)) {
      pair->in_message = false;
      return false;
    }
    return true;
  }
  if (ahead == 0) return true;
  if (ahead < 0) {
    reply(now_ns, pair, Kind::ack, pair->expected_psn - 1);
  } else if (!pair->refused_gap) {
    pair->refused_gap = true;
    reply(now_ns, pair, Kind::nak_sequence, pair->expected_psn);
  }
  return false;
}

// Writes a packet's payload to memory. The last packet of a message also completes the message.
Adapter::Verdict Adapter::place(Qp* pair, const Packet& packet, const std::uint8_t* payload) {
  const bool writes = (packet.flags & kWrite) != 0, last = (packet.flags & kLast) != 0;
  const std::uint32_t before = (packet.flags & kFirst) != 0 ? 0 : pair->message_bytes;
  if (packet.bytes > pair->mtu_bytes) return Verdict::invalid;
  if ((!writes || (packet.flags & kImmediate) != 0) && !take_receive(pair)) return Verdict::not_ready;
  if (writes) {
    const bool allowed =
        packet.bytes == 0 || ((pair->access & IBV_ACCESS_REMOTE_WRITE) != 0 &&
                              memory.allows_remote_write(pair->pd, packet.rkey, packet.address, packet.bytes));
    if (!allowed || !memory.write_remote(packet.rkey, packet.address, payload, packet.bytes)) return Verdict::access;
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  } else if (room_of(*pair->receive) < std::uint64_t{before} + packet.bytes) {
    return Verdict::invalid;
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  } else if (!scatter(*pair, *pair->receive, before, payload, packet.bytes)) {
    complete_receive(pair, packet, IBV_WC_LOC_PROT_ERR, 0);
    return Verdict::invalid;
  }
  pair->message_bytes = before + packet.bytes;
  pair->in_message = !last;
  if (last && (!writes || (packet.flags & kImmediate) != 0)) {
    complete_receive(pair, packet, IBV_WC_SUCCESS, pair->message_bytes);
  }
  return Verdict::ok;
}

void Adapter::on_data(std::int64_t now_ns, Qp* pair, const Packet& packet, const std::uint8_t* payload) {
  if (!in_order(now_ns, pair, packet)) return;
  const bool reliable = pair->qp_type == IBV_QPT_RC;
  const Verdict verdict = place(pair, packet, payload);
  pair->refused_gap = false;
  if (verdict == Verdict::access) add(Count::refused);
  if (verdict == Verdict::ok) {
    pair->expected_psn = (packet.psn + 1) & kPsnMask;
    if ((packet.flags & kAskAck) != 0) reply(now_ns, pair, Kind::ack, packet.psn);
  } else if (!reliable) {
    pair->in_message = false;
  } else if (verdict == Verdict::not_ready) {
    // No NACK is sent for later packets, because the sender resends this packet and all that follow it.
    reply(now_ns, pair, Kind::nak_not_ready, packet.psn);
    pair->refused_gap = true;
  } else {
    const bool access = verdict == Verdict::access;
    reply(now_ns, pair, access ? Kind::nak_access : Kind::nak_invalid, packet.psn);
    if (!access && pair->receive) complete_receive(pair, packet, IBV_WC_LOC_LEN_ERR, 0);
    fail(pair, access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
  }
}

}  // namespace weft::softverbs
