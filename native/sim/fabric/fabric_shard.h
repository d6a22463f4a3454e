// The nodes that one thread simulates, window by window, with their own calendar, packets and counters. Packets for
// other shards wait in outboxes until all threads have finished the window, so that no shard writes data of another.
#pragma once

#include <compare>
#include <memory>
#include <new>
#include <vector>

#include "native/sim/fabric/fabric_checks.h"
#include "native/sim/fabric/fabric_switch.h"

namespace weft::sim {

// All hosts and switches of the fabric, which every shard reads.
struct FabricNodes {
  std::vector<std::unique_ptr<FabricHost>> hosts;
  std::vector<FabricSwitch> switches;
  std::vector<u8> shard_of;  // node -> shard
};

// When a violation or failure was first seen. Moments are ordered alike for any distribution of nodes to shards.
struct FabricMoment {
  i64 window = core::kNever;
  u32 node = 0;
  auto operator<=>(const FabricMoment&) const = default;
};

class FabricShard final : public FabricSink {
 public:
  FabricShard(u32 index, u32 shards, const FabricPlan& plan, FabricNet* net, FabricWork* work, FabricNodes* nodes,
              i64 window_ps);
  ~FabricShard();

  FabricShared& shared() noexcept { return shared_; }
  // Schedules the host's next wake-up. Call it after anything that may have changed the time of that wake-up.
  void enlist(u32 host);
  void push(const FabricDue& due) { calendar_.push(due); }
  i64 next_window() noexcept { return calendar_.next_window(); }
  void step(i64 window);
  // Runs `work`. If memory runs out, this is only noted, and all threads stop at their next barrier: a thread that
  // ended earlier would leave the others waiting there.
  template <class Work>
  void guarded(Work work) noexcept {
    try {
      work();
    } catch (const std::bad_alloc&) {
      starved_ = true;
    }
  }
  // Copies the packets that `other` has queued for this shard. After that, `other` may drop them (clear_outboxes()).
  void import_from(FabricShard& other);
  void clear_outboxes() noexcept;

  bool starved() const noexcept { return starved_; }
  i64 packet_hops() const noexcept { return packet_hops_; }
  std::size_t packets_in_use() const noexcept { return packets_.in_use(); }
  std::size_t blocks_in_use() const noexcept { return packets_.blocks_in_use(); }
  // Calls `look` for all packets on wires, and for packets in outboxes, which also have a copy in another shard.
  template <class Look>
  void each_packet(Look look) const {
    calendar_.each_packet(look);
    for (const std::vector<FabricDue>& box : outbox_) {
      for (const FabricDue& due : box) look(*due.packet);
    }
  }
  std::size_t bytes_held() const noexcept { return packets_.bytes_held() + calendar_.bytes_held(); }
  FabricChecks* checks() noexcept { return checks_.get(); }
  const FabricMoment& first_violation() const noexcept { return first_violation_; }
  const FabricMoment& first_failure() const noexcept { return first_failure_; }
  const FabricMoment& first_policy_failure() const noexcept { return first_policy_failure_; }

  void arrive(FabricPacket* packet, u32 port, u32 node) override;
  void lose(FabricPacket* packet) override { packets_.give(packet); }
  void look(u32 node, u32 port, i64 at_ps) override { calendar_.push({at_ps, node, port, nullptr}); }
  void leave(const FabricPacket& packet, u32 port, i64 at_ps) override;

 private:
  void gather(std::size_t place, std::vector<FabricDue>* out);
  static constexpr std::size_t kTimes = 128;  // number of buckets in which deal() sorts a window's events
  void deal(i64 begin_ps);
  void sort(i64 begin_ps);
  void handle(u32 node, i64 end_ps);
  void check_late(i64 window);
  void note(const FabricMoment& now) noexcept;

  u32 index_, hosts_;
  i64 window_ps_;
  FabricNodes* nodes_;
  FabricPacketPool packets_;
  FabricCalendar calendar_;
  FabricShared shared_;
  std::unique_ptr<core::TxBurst> burst_;
  std::unique_ptr<FabricChecks> checks_;
  FabricMoment first_violation_, first_failure_, first_policy_failure_;
  i64 packet_hops_ = 0;
  bool pfc_, starved_ = false;
  std::vector<FabricDue> due_, sorted_, next_, dealt_;
  // heads_: index of each node's first event. chain_: for each event, index of the same node's next event. active_:
  // nodes with events.
  std::vector<u32> heads_, chain_, active_;
  std::vector<std::vector<FabricDue>> outbox_;
};

}  // namespace weft::sim
