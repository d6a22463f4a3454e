// An account kept beside the core of what a run may do, from what its packets say: P-1 to P-7 as far as they can be
// seen from outside. One a shard; looks at a transfer only where its host is. Changes nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "native/sim/fabric_packet.h"
#include "native/sim/fabric_work.h"

namespace weft::sim {

class FabricChecks {
 public:
  FabricChecks(const FabricPlan& plan, const FabricWork& work) : plan_(plan), work_(work) {}

  // Where a transfer's bytes would lie. Nobody reads there: an address tells whose bytes a packet carries.
  static const u8* address_of(u32 transfer) noexcept {
    return reinterpret_cast<const u8*>((std::uintptr_t{transfer} + 1) << 40);
  }
  static constexpr u32 kTransfersMax = (1u << 23) - 1;

  void on_burst(u32 host, core::Stack& stack, u32 to, const core::TxBurst& burst);
  void on_delivered(const FabricPacket& packet);
  void on_sent(u32 transfer);
  void on_placed(u32 transfer);
  void on_rest(core::Stack& stack, u32 host);

  i64 violations() const noexcept { return violations_; }
  const std::string& violation() const noexcept { return violation_; }

 private:
  // What has come of a message while it is under way.
  struct Arrived {
    std::vector<bool> segments;
    u64 left = 0;
    bool placed = false;
  };
  void violate(const char* rule, const std::string& what, u32 transfer);
  Arrived& arrived(u32 transfer);
  u64 segments_of(u32 transfer) const noexcept;

  const FabricPlan& plan_;
  const FabricWork& work_;
  std::vector<std::unique_ptr<Arrived>> arrived_;  // by transfer
  std::vector<u8> sent_;                           // by transfer
  i64 violations_ = 0;
  std::string violation_;
};

}  // namespace weft::sim
