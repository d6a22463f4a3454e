// A packet's header names a message and an offset; its address names a transfer and an offset: they must agree, and a
// message is whole exactly when each of its segments has come with its payload.
#include "native/sim/fabric_checks.h"

namespace weft::sim {
namespace {

constexpr i64 kHostBytesMax = 64 << 20;  // P-7: the budget of an engine

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

void FabricChecks::on_burst(u32 host, core::Stack& stack, u32 to, const core::TxBurst& burst) {
  if (burst.count == 0 || burst.path >= plan_.paths)
    return violate("wire", "a burst without datagram or path", core::kNone);
  for (std::size_t i = 0; i < burst.count; ++i) {
    wire::Packet packet;
    if (wire::decode(burst.header(i), burst.header_bytes, burst.payload[i].bytes, &packet) != wire::Verdict::ok) {
      return violate("wire", "a stack sent what its own decoder refuses", core::kNone);
    }
    if (packet.common.type != wire::Type::data) {
      if (burst.header_bytes > wire::kControlBytesMax) violate("wire", "a control packet is too long", core::kNone);
      continue;
    }
    if (burst.header_bytes + burst.payload[i].bytes > plan_.segment_bytes)
      violate("wire", "a segment exceeds the MTU", core::kNone);
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(burst.payload[i].data);
    if (burst.payload[i].bytes == 0) continue;
    const auto transfer = static_cast<u32>((address >> 40) - 1);
    if (transfer >= plan_.transfers.size() || plan_.transfers[transfer].from != host ||
        plan_.transfers[transfer].to != to) {
      violate("P-1", "bytes that are no transfer's of this host", core::kNone);
      continue;
    }
    if (!sent_.empty() && sent_[transfer] != 0)
      violate("P-3", "bytes left a buffer that its send had given back", transfer);
    const u32 connection = work_.connection_of[transfer];
    core::Flow* flow = stack.flow(work_.connections[connection].at_sender);
    const i64 most = std::max<i64>(flow->tx.window().window_bytes(), plan_.segment_bytes);
    if (i == 0 && flow->tx.inflight_bytes() - static_cast<i64>(burst.total_bytes()) > most)
      violate("window", "more in flight than the window allows", transfer);
  }
}

void FabricChecks::on_delivered(const FabricPacket& packet) {
  if (!packet.data) return;
  wire::Packet decoded;
  if (wire::decode(packet.header(), packet.header_bytes, packet.payload_bytes, &decoded) != wire::Verdict::ok) {
    return violate("wire", "a packet changed on its way", core::kNone);
  }
  const wire::Data& data = decoded.data;
  if (packet.trimmed || packet.payload_bytes == 0) {
    return;
  }
  const auto transfer = static_cast<u32>((reinterpret_cast<std::uintptr_t>(packet.payload) >> 40) - 1);
  const u64 offset = static_cast<u64>(packet.payload - address_of(transfer));
  if (data.message != work_.number_of[transfer] || data.offset_bytes != offset ||
      data.message_bytes != plan_.transfers[transfer].bytes) {
    return violate("P-1", "a header names other bytes than its packet carries", transfer);
  }
  Arrived& at = arrived(transfer);
  const u64 index = offset / wire::segment_payload_bytes(plan_.segment_bytes);
  if (at.placed || at.segments.empty() || at.segments[index]) return;
  at.segments[index] = true;
  --at.left;
}

void FabricChecks::on_placed(u32 transfer) {
  Arrived& at = arrived(transfer);
  if (at.placed) violate("P-3", "a message completed twice", transfer);
  if (at.left != 0 && plan_.transfers[transfer].bytes != 0) {
    violate("P-1", "a message completed with " + std::to_string(at.left) + " segments missing", transfer);
  }
  const u32 connection = work_.connection_of[transfer];
  // Eager messages complete in any order; each only once, and only if it was posted.
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

void FabricChecks::on_rest(core::Stack& stack, u32 host) {
  const core::StackCounters& counters = stack.counters();
  if (counters.malformed + counters.bad_crc + counters.bad_magic + counters.bad_version != 0) {
    violate("P-6", "host" + std::to_string(host) + " refused a packet that a stack had made", core::kNone);
  }
  if (static_cast<i64>(stack.storage_bytes()) > kHostBytesMax) {
    violate("P-7", "host" + std::to_string(host) + " holds " + std::to_string(stack.storage_bytes()) + " bytes",
            core::kNone);
  }
}

}  // namespace weft::sim
