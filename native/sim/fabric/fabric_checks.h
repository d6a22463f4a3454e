// Checks the invariants P-1 to P-7 from outside the core, as far as packets and events show them. There is one object
// per shard; a transfer is checked only at the hosts where it begins and ends.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "native/core/stack.h"
#include "native/sim/fabric/fabric_packet.h"
#include "native/sim/fabric/fabric_work.h"

namespace weft::sim {

class FabricChecks {
 public:
  FabricChecks(const FabricPlan& plan, const FabricWork& work) : plan_(plan), work_(work) {}

  // A fake address for the bytes of a transfer. It is never accessed; it only tells which bytes a packet carries.
  static const u8* address_of(u32 transfer) noexcept {
    return reinterpret_cast<const u8*>((std::uintptr_t{transfer} + 1) << 40);
  }
  static constexpr u32 kTransfersMax = (1u << 23) - 1;

  void on_burst(u32 host, core::Stack& stack, u32 to, const core::TxBurst& burst);
  // Called before the packet is passed to the stack of the host packet.to.
  void on_delivered(const FabricPacket& packet);
  void on_sent(u32 transfer);
  void on_placed(u32 transfer);
  // Called if an event was handled outside its time window, which is a defect of the simulator itself.
  void on_late(u32 node) { violate("time", "node " + std::to_string(node) + " got an event outside its time window"); }
  void on_path(u32 host, u32 peer, u8 path, bool usable, i64 now_ns);
  // Checks at the end, while no thread runs. on_rest() checks one host, on_transfers() all transfers. `finished`: all
  // transfers are done.
  void on_rest(core::Stack& stack, u32 host, i64 now_ns, bool finished);
  void on_transfers();
  // Compares the numbers of packets and header blocks taken from the pools with those found in the network.
  void on_packets(std::size_t lent, std::size_t found, std::size_t blocks_lent, std::size_t blocks_found);

  // How often the most resent segment of a connection was resent; 0 at shards that do not have its sender.
  i64 copies_max(u32 connection) const noexcept {
    return connection < senders_.size() && senders_[connection] != nullptr ? senders_[connection]->copies_max : 0;
  }
  i64 violations() const noexcept { return violations_; }
  const std::string& violation() const noexcept { return violation_; }

 private:
  // The segments of an unfinished message that have arrived.
  struct Arrived {
    std::vector<bool> segments;
    u64 left = 0;
    bool placed = false;
  };
  // The latest transmission of a segment, according to the sender's packets and the acknowledgments and NACKs that it
  // received.
  struct Copy {
    i64 sent_ns = -1;
    u8 path = 0;
    bool acked = false;
    bool refused = false;  // a NACK for this transmission was received
    u16 bytes = 0;         // payload
    u32 copies = 0;        // how often the segment was resent
  };
  struct Sender {
    std::vector<Copy> segments;  // latest transmission of each segment, indexed by sequence number
    i64 refused = 0;             // number of transmissions for which a NACK was received
    u64 cumulative_seq = 0;      // all segments below it are acknowledged
    i64 unacked_bytes = 0;       // payload of the segments that were sent and not acknowledged
    i64 copies_max = 0;
  };
  void violate(const char* rule, const std::string& what, u32 transfer = core::kNone);
  Arrived& arrived(u32 transfer);
  u64 segments_of(u32 transfer) const noexcept;
  u32 connection_at(u32 host, u32 flow);
  Sender& sender(u32 connection);
  void on_segment(u32 host, core::Stack& stack, u32 to, const wire::Packet& packet, u8 path, u16 payload_bytes);
  void on_data(const FabricPacket& packet, const wire::Data& data);
  void on_ack(u32 host, const wire::Packet& packet);
  void on_nack(u32 host, const wire::Packet& packet);
  void check_storage(core::Stack& stack, u32 host);
  void check_sender(core::Stack& stack, u32 connection, bool finished);
  void check_ledger(core::Stack& stack, u32 connection);
  static void acknowledge(Sender* sender, u64 seq) noexcept;
  void check_paths(core::Stack& stack, u32 host, i64 now_ns, bool finished);
  bool came_to_rest(i64* healed_ns) const;

  const FabricPlan& plan_;
  const FabricWork& work_;
  std::vector<std::unique_ptr<Arrived>> arrived_;  // indexed by transfer
  std::vector<u8> sent_;                           // indexed by transfer; 1: its send has completed
  std::map<std::pair<u32, u32>, u32> flows_;       // (host, flow) -> connection
  std::vector<std::unique_ptr<Sender>> senders_;   // indexed by connection
  std::map<std::tuple<u32, u32, u8>, i64> down_;   // (host, peer, path) -> when the path became silent
  u64 bursts_ = 0;
  i64 violations_ = 0;
  std::string violation_;
};

}  // namespace weft::sim
