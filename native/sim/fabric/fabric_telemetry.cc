// An acknowledgment reports on each path the latest send time of a segment that arrived, and that is the segment whose
// records it takes along.
#include "native/sim/fabric/fabric_telemetry.h"

#include <utility>

namespace weft::sim {

void FabricTelemetry::on_sent(FabricPacket* packet, FabricPacketPool* pool) {
  if (packet->data) {
    packet->hops = pool->take_hops();
    return;
  }
  if (packet->header()[3] != static_cast<u8>(wire::Type::ack)) return;
  wire::Packet decoded;
  if (wire::decode(packet->header(), packet->header_bytes, packet->payload_bytes, &decoded) != wire::Verdict::ok)
    return;
  for (std::size_t i = 0; i < decoded.ack.report_count; ++i) {
    const wire::PathReport report = decoded.ack.report(i);
    const auto kept = kept_.find({decoded.common.token, report.path});
    if (kept == kept_.end() || kept->second == nullptr || kept->second->sent_ns != report.echo_sent_ns) continue;
    wire::HopRecords* const records = std::exchange(kept->second, nullptr);
    records->next = packet->hops;
    packet->hops = records;
  }
}

void FabricTelemetry::on_segment(FabricPacket* packet, i64 now_ns) {
  wire::Packet decoded;
  if (wire::decode(packet->header(), packet->header_bytes, packet->payload_bytes, &decoded) != wire::Verdict::ok)
    return;
  wire::HopRecords*& kept = kept_[{decoded.common.token, decoded.common.path}];
  if (kept != nullptr && kept->sent_ns >= decoded.data.sent_ns) return;
  packet->hops->path = decoded.common.path;
  packet->hops->sent_ns = decoded.data.sent_ns;
  packet->hops->received_ns = now_ns;
  std::swap(kept, packet->hops);  // the packet returns the older records to the pool
}

}  // namespace weft::sim
