// Carries the telemetry of segments back to their senders: keeps it where the segments arrive, until the acknowledgment
// that reports on them is sent. Only runs with a policy that reads it have this.
#pragma once

#include <unordered_map>

#include "native/sim/fabric/fabric_packet.h"

namespace weft::sim {

// That of the hosts of one shard.
class FabricTelemetry {
 public:
  // A segment gets empty records for the ports to fill; an acknowledgment takes the records of the segments that it
  // echoes.
  void on_sent(FabricPacket* packet, FabricPacketPool* pool);
  // Takes over the records of an arrived segment, if it was sent later than the one whose records are kept.
  void on_segment(FabricPacket* packet, i64 now_ns);

 private:
  struct Key {
    u64 token;  // both directions of a connection have the same one
    u8 path;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept { return key.token ^ u64{key.path} * 0x9E3779B97F4A7C15u; }
  };
  std::unordered_map<Key, wire::HopRecords*, Hash> kept_;
};

}  // namespace weft::sim
