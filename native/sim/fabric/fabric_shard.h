// The nodes that one thread simulates, window by window, with their own calendar, packets and counters. Packets for
// other shards wait in outboxes until all threads have finished the window, so that no shard writes data of another.
#pragma once

#include <compare>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "native/sim/fabric/fabric_checks.h"
#include "native/sim/fabric/fabric_switch.h"
#include "native/sim/fabric/fabric_telemetry.h"

namespace weft::sim {

// All hosts and switches of the fabric, which every shard reads.
struct FabricNodes {
  std::vector<std::unique_ptr<FabricHost>> hosts;
  std::vector<FabricSwitch> switches;
  std::vector<u8> shard_of;  // node -> shard
  // node -> color: 0 for hosts. If `paired`, links join only nodes of different colors; otherwise all are 0.
  std::vector<u8> color_of;
  bool paired = false;
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

  u32 index() const noexcept { return index_; }
  FabricShared& shared() noexcept { return shared_; }
  // Counters that all paths of this shard's hosts share, because only traces read them; null: the run is traced, and
  // each path has its own.
  core::PathCells* path_counters() noexcept { return path_counters_.get(); }
  // Schedules the host's next wake-up. Call it after anything that may have changed the time of that wake-up.
  void enlist(u32 host);
  void push(const FabricDue& due) { calendar_.push(due); }
  i64 next_window(std::size_t color) const noexcept { return calendar_.next_window(color); }
  void skip_to(i64 window) { calendar_.skip_to(window); }
  // Handles the events of nodes of the colors in `colors`, a bit set, up to the end of window `end` - 1.
  void step(u32 colors, i64 end);
  // Whether a transfer of this shard's hosts certainly does not end within the next two windows: it has not begun, or
  // bytes of it were not sent. False also if none was found quickly.
  bool lasts() noexcept;
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
  // Takes over the packets that `other` has queued for this shard, while `other` does nothing with them.
  void import_from(FabricShard& other);

  bool starved() const noexcept { return starved_; }
  i64 packet_hops() const noexcept { return packet_hops_; }
  std::size_t packets_in_use() const noexcept { return packets_.in_use(); }
  std::size_t blocks_in_use() const noexcept { return packets_.blocks_in_use(); }
  // Calls `look` for all packets on wires, between two rounds.
  template <class Look>
  void each_packet(Look look) const {
    calendar_.each_packet(look);
  }
  std::size_t bytes_held() const noexcept { return packets_.bytes_held() + calendar_.bytes_held(); }
  FabricChecks* checks() noexcept { return checks_.get(); }
  const FabricMoment& first_violation() const noexcept { return first_violation_; }
  const FabricMoment& first_failure() const noexcept { return first_failure_; }
  const FabricMoment& first_policy_failure() const noexcept { return first_policy_failure_; }

  void arrive(FabricPacket* packet, u32 port, u32 node) override {
    const FabricDue due{packet->due_ps, node, port, packet};
    if (alone_ || nodes_->shard_of[node] == index_) {
      calendar_.push(due);
    } else {
      outbox_[nodes_->shard_of[node]].push_back(due);
    }
  }
  void lose(FabricPacket* packet) override { packets_.give(packet); }
  void look(u32 node, u32 port, i64 at_ps) override { calendar_.push({at_ps, node, port, nullptr}); }
  void leave(const FabricPacket& packet, u32 port, i64 at_ps) override {
    if (pfc_) left(packet, port, at_ps);
  }

 private:
  static constexpr std::size_t kTimes = 256;  // number of buckets in which sort() puts the events of a node
  void left(const FabricPacket& packet, u32 port, i64 at_ps);
  void distribute();
  void prefetch(std::size_t place) const noexcept;
  static void prefetch_for_host(const FabricHost& host, const FabricPacket& packet, std::size_t ahead) noexcept;
  void prefetch_for_switch(const FabricDue& due, std::size_t ahead) const noexcept;
  FabricDue* sort(FabricDue* dues, std::size_t count, i64 begin_ps);
  void handle(std::size_t place, i64 begin_ps, i64 end_ps);
  void handle_host(u32 node, std::span<const FabricDue> dues, i64 begin_ps, i64 end_ps);
  void check_late(i64 begin, i64 end);
  void note(const FabricMoment& now) noexcept;

  u32 index_, hosts_;
  i64 window_ps_;
  FabricNodes* nodes_;
  FabricPacketPool packets_;
  FabricCalendar calendar_;
  FabricShared shared_;
  std::unique_ptr<core::TxBurst> burst_;
  std::unique_ptr<FabricChecks> checks_;
  std::unique_ptr<FabricTelemetry> telemetry_;
  FabricMoment first_violation_, first_failure_, first_policy_failure_;
  i64 packet_hops_ = 0;
  std::unique_ptr<core::PathCells[]> path_counters_;
  bool pfc_, alone_, starved_ = false;
  std::vector<u32> sends_;          // connections whose senders are hosts of this shard
  std::size_t sends_at_ = 0;        // where lasts() goes on looking
  u32 transfers_ = 0;               // number of the transfers of these connections
  int time_shift_ = 0;              // a bucket of sort() is 2^time_shift_ ps long
  std::vector<FabricDue> dues_;     // the events of a round, grouped by node
  std::vector<u32> active_;         // nodes with events in the round
  std::vector<u32> begins_;         // for each active node, and behind the last: where its events begin in dues_
  std::vector<u32> places_;         // by node: used by distribute()
  std::vector<FabricDue> by_time_;  // used by sort()
  std::vector<std::vector<FabricDue>> outbox_;  // by shard: packets for its nodes
  std::vector<FabricPacketPool> returned_;      // by shard: what it has left over of the packets that it got from here
};

}  // namespace weft::sim
