// Checks the packets of a run. A packet's header names a message and an offset, and its payload address encodes a
// transfer and an offset; they must agree. A message must be complete exactly when each of its segments has arrived
// with its payload.
#include "native/sim/fabric/fabric_checks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "native/sim/fabric/fabric_host.h"

namespace weft::sim {
namespace {

constexpr i64 kHostBytesMax = 64 << 20;  // maximum size of a host's protocol state (P-7)
constexpr u64 kStorageEvery = 256;       // one check of the protocol state's size per this many bursts
// How long a working path may stay silent after repairs, in multiples of rto_ns_max.
constexpr i64 kBackTimeouts = 20;
constexpr i64 kHeaderQueueBytes = 64 * 1024;  // with a smaller queue for headers, probes could be lost for ever

}  // namespace

void FabricChecks::violate(const char* rule, const std::string& what, u32 transfer) {
  ++violations_;
  if (violation_.empty()) {
    violation_ = std::string(rule) + ": " + what;
    if (transfer != core::kNone) violation_ += " (transfer " + std::to_string(transfer) + ")";
  }
}

u64 FabricChecks::segments_of(u32 transfer) const noexcept {
  const u64 payload = wire::segment_payload_bytes(plan_.segment_bytes);
  const u64 bytes = plan_.transfers[transfer].bytes;
  return bytes == 0 ? 1 : (bytes + payload - 1) / payload;
}

FabricChecks::Arrived& FabricChecks::arrived(u32 transfer) {
  if (arrived_.empty()) arrived_.resize(plan_.transfers.size());
  if (arrived_[transfer] == nullptr) {
    arrived_[transfer] = std::make_unique<Arrived>();
    arrived_[transfer]->left = segments_of(transfer);
    arrived_[transfer]->segments.resize(arrived_[transfer]->left);
  }
  return *arrived_[transfer];
}

// Returns the connection to which a host's flow belongs: every connection has one flow at each end, used by no other.
u32 FabricChecks::connection_at(u32 host, u32 flow) {
  if (flows_.empty()) {
    senders_.resize(work_.connections.size());
    for (u32 i = 0; i < work_.connections.size(); ++i) {
      const FabricConnection& connection = work_.connections[i];
      flows_[{connection.from, connection.at_sender}] = i;
      flows_[{connection.to, connection.at_receiver}] = i;
    }
  }
  const auto found = flows_.find({host, flow});
  return found == flows_.end() ? core::kNone : found->second;
}

FabricChecks::Sender& FabricChecks::sender(u32 connection) {
  if (senders_[connection] == nullptr) senders_[connection] = std::make_unique<Sender>();
  return *senders_[connection];
}

void FabricChecks::on_burst(u32 host, core::Stack& stack, u32 to, const core::TxBurst& burst) {
  if (burst.count == 0 || burst.path >= plan_.paths)
    return violate("wire", "a stack sent a burst without datagrams or on an unknown path");
  if (++bursts_ % kStorageEvery == 0) check_storage(stack, host);
  u32 last = core::kNone;  // connection of the burst's segments
  for (std::size_t i = 0; i < burst.count; ++i) {
    wire::Packet packet;
    if (wire::decode(burst.header(i), burst.header_bytes, burst.payload[i].bytes, &packet) != wire::Verdict::ok) {
      return violate("wire", "a stack sent a packet that its own decoder refuses");
    }
    if (packet.common.type != wire::Type::data) {
      if (burst.header_bytes > wire::kControlBytesMax) violate("wire", "a control packet is longer than allowed");
      continue;
    }
    if (burst.header_bytes + burst.payload[i].bytes > plan_.segment_bytes)
      violate("wire", "a segment is longer than segment_bytes");
    on_segment(host, stack, to, packet, burst.path, static_cast<u16>(burst.payload[i].bytes));
    last = connection_at(to, packet.common.flow);
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(burst.payload[i].data);
    if (burst.payload[i].bytes == 0) continue;
    const auto transfer = static_cast<u32>((address >> 40) - 1);
    if (transfer >= plan_.transfers.size() || plan_.transfers[transfer].from != host ||
        plan_.transfers[transfer].to != to) {
      violate("P-1", "a host sent bytes that belong to none of its transfers");
      continue;
    }
    if (!sent_.empty() && sent_[transfer] != 0)
      violate("P-3", "bytes were sent from a buffer after its send had completed", transfer);
    const u32 connection = work_.connection_of[transfer];
    core::Flow* flow = stack.flow(work_.connections[connection].at_sender);
    const i64 most = std::max<i64>(flow->tx.window().window_bytes(), plan_.segment_bytes);
    if (i == 0 && flow->tx.inflight_bytes() - static_cast<i64>(burst.total_bytes()) > most)
      violate("window", "more bytes in flight than the window allows", transfer);
  }
  if (last != core::kNone) check_ledger(stack, last);
}

// Compares the core's count of bytes in flight with the bytes that packets and acknowledgments show. They differ by at
// most the segments that are declared lost and not yet resent. Refused segments are not in flight; how many of them
// were resent is not known here, so a sender that got a NACK is not checked.
void FabricChecks::check_ledger(core::Stack& stack, u32 connection) {
  const Sender& at = sender(connection);
  if (at.refused != 0) return;
  core::FlowSender& tx = stack.flow(work_.connections[connection].at_sender)->tx;
  const i64 open = tx.counters().segments_lost - tx.counters().segments_resent;
  const i64 lost_bytes = tx.has_lost() ? open * wire::segment_payload_bytes(plan_.segment_bytes) : 0;
  const i64 beyond = at.unacked_bytes - tx.inflight_bytes();
  if (beyond >= 0 && beyond <= lost_bytes) return;
  violate("ledger",
          "the core counts " + std::to_string(tx.inflight_bytes()) +
              " bytes in flight, but by the packets and ACKs seen " + std::to_string(at.unacked_bytes) +
              " bytes are unacknowledged, of which at most " + std::to_string(lost_bytes) + " are declared lost",
          work_.order[work_.connections[connection].first]);
}

void FabricChecks::acknowledge(Sender* sender, u64 seq) noexcept {
  Copy& copy = sender->segments[seq];
  if (!copy.acked) sender->unacked_bytes -= copy.bytes;
  copy.acked = true;
}

// Checks P-4 for a sent segment: it is sent again only after it was declared lost, never once the sender knows of its
// arrival, and over another path if one is usable. Here ports accept every packet, so every path has room.
void FabricChecks::on_segment(u32 host, core::Stack& stack, u32 to, const wire::Packet& packet, u8 path,
                              u16 payload_bytes) {
  const u32 connection = connection_at(to, packet.common.flow);
  if (connection == core::kNone || work_.connections[connection].from != host)
    return violate("wire", "a segment was sent to a flow that does not belong to the sender's connection");
  Sender& from = sender(connection);
  std::vector<Copy>& segments = from.segments;
  core::Flow& flow = *stack.flow(work_.connections[connection].at_sender);
  const u64 seq = packet.data.seq;
  if (flow.peer->paths().path(path).inflight_bytes < 0)
    violate("P-7", "the count of bytes in flight on a path is negative");
  if (seq > segments.size()) return violate("P-4", "a sender skipped a sequence number");
  if (seq == segments.size()) {
    from.unacked_bytes += payload_bytes;
    return segments.push_back({packet.data.sent_ns, path, false, false, payload_bytes, 0});
  }
  Copy& last = segments[seq];
  if (last.acked) violate("P-4", "a segment was resent although it was acknowledged");
  if (packet.data.sent_ns <= last.sent_ns)
    violate("P-4", "a resent segment's send time is not later than that of its previous transmission");
  if (flow.tx.counters().segments_resent > flow.tx.counters().segments_lost)
    violate("P-4", "more segments resent than declared lost");
  const core::PathSet& paths = flow.peer->paths();
  for (std::size_t other = 0; last.path == path && other < paths.count(); ++other) {
    if (other == path || !paths.path(other).usable || !paths.path(path).usable) continue;
    violate("P-4", "a segment was resent on the path that lost it, although another was usable");
    break;
  }
  last = {packet.data.sent_ns, path, false, false, payload_bytes, last.copies + 1};
  from.copies_max = std::max(from.copies_max, i64{last.copies});
}

void FabricChecks::on_delivered(const FabricPacket& packet) {
  wire::Packet decoded;
  if (wire::decode(packet.header(), packet.header_bytes, packet.payload_bytes, &decoded) != wire::Verdict::ok) {
    return violate("wire", "a packet was changed in transit");
  }
  if (decoded.common.type == wire::Type::ack) on_ack(packet.to, decoded);
  if (decoded.common.type == wire::Type::nack) on_nack(packet.to, decoded);
  if (packet.data && !packet.trimmed && packet.payload_bytes != 0) on_data(packet, decoded.data);
}

void FabricChecks::on_data(const FabricPacket& packet, const wire::Data& data) {
  const auto transfer = static_cast<u32>((reinterpret_cast<std::uintptr_t>(packet.payload) >> 40) - 1);
  const u64 offset = static_cast<u64>(packet.payload - address_of(transfer));
  if (data.message != work_.number_of[transfer] || data.offset_bytes != offset ||
      data.message_bytes != plan_.transfers[transfer].bytes) {
    return violate("P-1", "a packet's header and its payload name different bytes", transfer);
  }
  Arrived& at = arrived(transfer);
  const u64 index = offset / wire::segment_payload_bytes(plan_.segment_bytes);
  if (at.placed || at.segments.empty() || at.segments[index]) return;
  at.segments[index] = true;
  --at.left;
}

void FabricChecks::on_ack(u32 host, const wire::Packet& packet) {
  const u32 connection = connection_at(host, packet.common.flow);
  if (connection == core::kNone) return;
  Sender& from = sender(connection);
  const std::vector<Copy>& segments = from.segments;
  const wire::Ack& ack = packet.ack;
  if (ack.cumulative_seq > segments.size())
    return violate("P-3", "a receiver acknowledged a segment that was never sent");
  for (; from.cumulative_seq < ack.cumulative_seq; ++from.cumulative_seq) acknowledge(&from, from.cumulative_seq);
  for (std::size_t word = 0; word < ack.bitmap_words; ++word) {
    u64 bits;
    std::memcpy(&bits, ack.bitmap + 8 * word, 8);
    for (; bits != 0; bits &= bits - 1) {
      const u64 seq = ack.base_seq + 64 * word + static_cast<u64>(std::countr_zero(bits));
      if (seq >= segments.size()) return violate("P-3", "a receiver acknowledged a segment that was never sent");
      acknowledge(&from, seq);
    }
  }
}

// A NACK counts only if it names the latest transmission of a segment. A NACK of an earlier transmission has no effect.
void FabricChecks::on_nack(u32 host, const wire::Packet& packet) {
  const u32 connection = connection_at(host, packet.common.flow);
  if (connection == core::kNone) return;
  Sender& at = sender(connection);
  for (std::size_t i = 0; i < packet.nack.count; ++i) {
    const wire::NackEntry entry = packet.nack.entry(i);
    if (entry.seq >= at.segments.size()) return violate("P-4", "a NACK names a segment that was never sent");
    Copy& copy = at.segments[entry.seq];
    if (copy.acked || copy.refused || copy.sent_ns != entry.sent_ns) continue;
    copy.refused = true;
    ++at.refused;
  }
}

void FabricChecks::on_placed(u32 transfer) {
  Arrived& at = arrived(transfer);
  if (at.placed) violate("P-3", "a message completed twice", transfer);
  if (at.left != 0 && plan_.transfers[transfer].bytes != 0) {
    violate("P-1", "a message completed with " + std::to_string(at.left) + " segments missing", transfer);
  }
  const u32 connection = work_.connection_of[transfer];
  // Eager messages may complete in any order, but only once each, and only after their receive was posted.
  if (work_.number_of[transfer] >= work_.posted_receives[connection])
    violate("P-3", "a message completed before its receive was posted", transfer);
  at.placed = true;
  at.segments = {};
}

void FabricChecks::on_sent(u32 transfer) {
  if (sent_.empty()) sent_.resize(plan_.transfers.size());
  if (sent_[transfer] != 0) violate("P-3", "a send completed twice", transfer);
  sent_[transfer] = 1;
}

void FabricChecks::on_path(u32 host, u32 peer, u8 path, bool usable, i64 now_ns) {
  if (usable) {
    down_.erase({host, peer, path});
  } else {
    down_.try_emplace({host, peer, path}, now_ns);
  }
}

void FabricChecks::on_rest(core::Stack& stack, u32 host, i64 now_ns, bool finished) {
  const core::EngineCells& counters = stack.counters();
  if (counters.malformed + counters.bad_crc + counters.bad_magic + counters.bad_version + counters.stray != 0)
    violate("P-6", "host" + std::to_string(host) + " refused a packet that another host's stack had sent");
  check_storage(stack, host);
  check_paths(stack, host, now_ns, finished);
  for (u32 i = 0; i < work_.connections.size(); ++i) {
    if (work_.connections[i].from == host) check_sender(stack, i, finished);
  }
  const core::Shared& shared = stack.shared();
  const std::size_t lent =
      shared.send_slabs.blocks_in_use() + shared.bitmaps.blocks_in_use() + shared.eager_blocks.blocks_in_use();
  if (finished && lent != 0) {
    violate("P-7", "host" + std::to_string(host) + " still uses " + std::to_string(static_cast<i64>(lent)) +
                       " memory blocks although all transfers are done");
  }
}

void FabricChecks::check_storage(core::Stack& stack, u32 host) {
  const auto bytes = static_cast<i64>(stack.storage_bytes());
  if (bytes > kHostBytesMax)
    violate("P-7", "host" + std::to_string(host) + " holds " + std::to_string(bytes) +
                       " bytes of protocol state, more than the limit of " + std::to_string(kHostBytesMax));
}

void FabricChecks::check_sender(core::Stack& stack, u32 connection, bool finished) {
  const FabricConnection& at = work_.connections[connection];
  core::FlowSender& tx = stack.flow(at.at_sender)->tx;
  const core::FlowCells& counters = tx.counters();
  const u32 first = work_.order[at.first];
  if (counters.segments_resent > counters.segments_lost)
    violate("P-4", "more segments resent than declared lost", first);
  if (!senders_.empty() && counters.segments_trimmed > sender(connection).refused)
    violate("P-4", "the sender counted a NACK of a transmission that was no longer in flight", first);
  if (!finished) return;
  if (tx.inflight_bytes() != 0 || tx.has_inflight() || tx.has_lost() || tx.has_outstanding())
    violate("P-7", "a sender still keeps segments although all transfers are done", first);
}

// Checks P-5 as far as the state at one moment shows it: a silent path has a scheduled probe, and a path that has been
// silent for long after all links were repaired is a violation.
void FabricChecks::check_paths(core::Stack& stack, u32 host, i64 now_ns, bool finished) {
  i64 healed_ns = 0;
  const bool judged = came_to_rest(&healed_ns);
  for (u32 number = 0; stack.peer(number) != nullptr; ++number) {
    core::Peer& peer = *stack.peer(number);
    if (peer.dead()) continue;
    for (std::size_t path = 0; path < peer.paths().count(); ++path) {
      const core::PathState& state = peer.paths().path(path);
      const auto told = [&](const char* what) {
        return "path " + std::to_string(path) + " of host" + std::to_string(host) + what;
      };
      if (finished && state.inflight_bytes != 0)
        violate("P-7", told(" has bytes in flight although all transfers are done"));
      if (state.usable) continue;
      if (peer.paths().trouble(path).probe_ns == core::kNever)
        violate("P-5", told(" is silent, and no probe is scheduled"));
      if (peer.paths().trouble(path).probe_ns < now_ns - plan_.rto_ns_max)
        violate("P-5", told(" is silent, and its probe is overdue"));
      const auto since = down_.find({host, number, static_cast<u8>(path)});
      if (since == down_.end()) {
        violate("P-5", told(" became silent without an event that reports it"));
      } else if (judged && now_ns - std::max(since->second, healed_ns) > kBackTimeouts * plan_.rto_ns_max) {
        violate("P-5", told(" did not become usable again after all links were repaired"));
      }
    }
  }
}

// Returns whether, at the end of the run, all links are up and lose no packets. `healed_ns`: since when this holds.
bool FabricChecks::came_to_rest(i64* healed_ns) const {
  std::vector<double> loss;
  std::vector<u8> down(plan_.ports.size(), 0);
  for (const PortPlan& port : plan_.ports) loss.push_back(port.loss + port.bit_error_rate);
  for (const PortChange& change : plan_.changes) {
    if (change.loss >= 0) loss[change.port] = plan_.ports[change.port].bit_error_rate + change.loss;
    if (change.up >= 0) down[change.port] = change.up == 0;
    *healed_ns = std::max(*healed_ns, FabricHost::kBeginNs + change.at_ns);
  }
  return plan_.header_queue_bytes_max >= kHeaderQueueBytes &&
         std::all_of(loss.begin(), loss.end(), [](double share) { return share <= 0; }) &&
         std::all_of(down.begin(), down.end(), [](u8 is_down) { return is_down == 0; });
}

// Checks P-3: a send completes only after the receiver has everything. This is not checked with advertised receives,
// because an eager message may wait in the receiver's memory, and its send then completes before the receive.
void FabricChecks::on_transfers() {
  if (!plan_.receives_ready) return;
  for (u32 i = 0; i < work_.transfers.size(); ++i) {
    const TransferReport& report = work_.transfers[i];
    if (report.sent_ns >= 0 && (report.received_ns < 0 || report.received_ns > report.sent_ns))
      violate("P-3", "a send completed before the receiver had the whole message", i);
  }
}

void FabricChecks::on_packets(std::size_t lent, std::size_t found, std::size_t blocks_lent, std::size_t blocks_found) {
  if (lent != found)
    violate("P-7", std::to_string(lent) + " packets are taken from the pools, but " + std::to_string(found) +
                       " are in the network");
  if (blocks_lent != blocks_found) {
    violate("P-7", std::to_string(blocks_lent) + " header blocks are taken from the pools, but " +
                       std::to_string(blocks_found) + " are in the network");
  }
}

}  // namespace weft::sim
