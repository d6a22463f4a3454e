// A simulated network of up to thousands of hosts in virtual time: real stacks, switches and links. One or several
// threads advance it in time windows; the result is the same for any number of threads. The plan, which includes the
// seed, determines the run.
#pragma once

#include <array>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "native/core/recording.h"
#include "native/sim/fabric/fabric_shard.h"

namespace weft::sim {

// Thrown when a thread of the run cannot be created.
class NoThread final : public std::bad_alloc {
 public:
  NoThread(std::size_t number, std::size_t of) noexcept {
    static_cast<void>(std::snprintf(words_, sizeof words_,
                                    "thread %zu of %zu cannot be created: run with fewer threads", number, of));
  }
  const char* what() const noexcept override { return words_; }

 private:
  char words_[80];
};

class Fabric {
 public:
  // The plan must outlive the object and must be valid, that is, complaint(plan) must return an empty string.
  explicit Fabric(const FabricPlan& plan);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // Runs for about `hops` packet-hops. Returns false if the run is over: everything is done, the time limit is reached,
  // or the run failed. Throws NoThread, after which it may be called again, or std::bad_alloc, after which the run is
  // over.
  bool run(i64 hops);

  FabricTotals totals();
  const std::string& violation() const noexcept { return violation_; }
  const std::string& policy_failure() const noexcept { return policy_failure_; }
  const std::vector<TransferReport>& transfers() const noexcept { return work_.transfers; }
  std::vector<StreamReport> streams();
  // For each connection, how often the most resent of its segments was resent; -1: the run is not checked.
  std::vector<i64> copies_max() const;
  std::vector<PortReport> ports() const;
  // For each switch, the most bytes of its shared buffer that were in use; empty if none is shared.
  std::vector<i64> buffer_bytes_max() const;
  const FabricSamples& samples() const noexcept { return samples_; }
  // What hosts recorded; empty unless the plan asks for it. By host, and for each host in order of time.
  const std::vector<TransferTrace>& traced_transfers() const noexcept { return traced_; }
  std::vector<PathTrace> traced_paths() const;
  std::vector<EventTrace> traced_events() const;
  // The decisions of policies; empty unless the plan asks for them.
  const std::vector<std::byte>& recording() const noexcept { return recording_; }
  const FabricNet& net() const noexcept { return net_; }
  FabricHost& host(u32 index) noexcept { return *nodes_.hosts[index]; }

 private:
  class Crew;
  struct Standing {
    std::array<i64, FabricCalendar::kColors> next{core::kNever, core::kNever};
    i64 hops = 0, through = 0;
    bool lasts = false, failed = false, starved = false;
  };
  // A step of the simulation: nodes of some colors, a bit set, handle their events up to the end of window `end` - 1.
  struct Round {
    u32 colors;
    i64 end;
  };
  void tell(FabricShard* shard, Crew* crew) const;
  Standing standing(const Crew& crew) const;
  Round choose(const Standing& now, i64 front, std::size_t ahead, bool go_on) const;
  void make_hosts();
  void make_connections();
  void record_decisions();
  u32 policy_set_of(const FabricConnection& connection) const noexcept;
  std::vector<u32> first_with_path() const;
  void open_peer(const FabricConnection& connection, u32 number, u32* at_sender, u32* at_receiver);
  core::FlowConfig flow_config(u32 policy_set, u32 number) const noexcept;
  void step_thread(u32 index, i64 hops, Crew* crew);
  void sample(i64 at_ps);
  i64 next_sample_ps() const noexcept;
  void settle_accounts();
  void check_all(FabricChecks* checks) const;

  const FabricPlan& plan_;
  FabricRules rules_;
  FabricNet net_;
  FabricWork work_;
  FabricNodes nodes_;
  std::vector<std::unique_ptr<FabricShard>> shards_;
  i64 window_ps_ = 0;
  i64 windows_ = 0;
  bool over_ = false, finished_ = false;
  i64 now_ps_ = 0;
  std::string violation_, policy_failure_;
  FabricSamples samples_;
  std::vector<TransferTrace> traced_;  // by transfer
  std::vector<std::byte> recording_;
  std::vector<std::unique_ptr<core::DecisionBuffer>> recorders_;  // one per host; they write to recording_
};

}  // namespace weft::sim
