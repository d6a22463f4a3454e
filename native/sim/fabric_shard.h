// The nodes that one thread steps, window by window: its own calendar, packets and counts. What goes to another shard
// waits in an outbox until both stand still. Shares nothing that is written.
#pragma once

#include <memory>
#include <vector>

#include "native/sim/fabric_checks.h"
#include "native/sim/fabric_switch.h"

namespace weft::sim {

// What all shards read.
struct FabricNodes {
  std::vector<std::unique_ptr<FabricHost>> hosts;
  std::vector<FabricSwitch> switches;
  std::vector<u8> shard_of;  // by node
};

class FabricShard final : public FabricSink {
 public:
  FabricShard(u32 index, u32 shards, const FabricPlan& plan, FabricNet* net, FabricWork* work, FabricNodes* nodes,
              i64 window_ps);
  ~FabricShard();

  FabricShared& shared() noexcept { return shared_; }
  // The host is to be handled when it asks to be; after anything that moved its time.
  void enlist(u32 host);
  void push(const FabricDue& due) { calendar_.push(due); }
  i64 next_window() noexcept { return calendar_.next_window(); }
  void step(i64 window);
  // Takes what `other` has for this shard; then `other` may throw its copies away.
  void import_from(FabricShard& other);
  void clear_outboxes() noexcept;

  i64 packet_hops() const noexcept { return packet_hops_; }
  std::size_t packets_in_use() const noexcept { return packets_.in_use(); }
  std::size_t blocks_in_use() const noexcept { return packets_.blocks_in_use(); }
  // Those on wires, and those that another shard has copied.
  template <class Look>
  void each_packet(Look look) const {
    calendar_.each_packet(look);
    for (const std::vector<FabricDue>& box : outbox_) {
      for (const FabricDue& due : box) look(*due.packet);
    }
  }
  std::size_t bytes_held() const noexcept { return packets_.bytes_held() + calendar_.bytes_held(); }
  FabricChecks* checks() noexcept { return checks_.get(); }

  void arrive(FabricPacket* packet, u32 port, u32 node) override;
  void lose(FabricPacket* packet) override { packets_.give(packet); }
  void look(u32 node, u32 port, i64 at_ps) override { calendar_.push({at_ps, node, port, nullptr}); }
  void leave(const FabricPacket& packet, u32 port, i64 at_ps) override;

 private:
  void gather(std::size_t place, std::vector<FabricDue>* out);
  static constexpr std::size_t kTimes = 128;  // parts of a window
  void deal(i64 begin_ps);
  void sort(i64 begin_ps);
  void handle(u32 node, i64 end_ps);

  u32 index_, hosts_;
  i64 window_ps_;
  FabricNodes* nodes_;
  FabricPacketPool packets_;
  FabricCalendar calendar_;
  FabricShared shared_;
  std::unique_ptr<core::TxBurst> burst_;
  std::unique_ptr<FabricChecks> checks_;
  i64 packet_hops_ = 0;
  bool pfc_;
  std::vector<FabricDue> due_, sorted_, next_, dealt_;
  std::vector<u32> heads_, chain_, active_;  // by node: its first due, and the next of each
  std::vector<std::vector<FabricDue>> outbox_;
};

}  // namespace weft::sim
