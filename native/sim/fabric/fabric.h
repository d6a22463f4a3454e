// A network of a thousand hosts in virtual time: real stacks, switches and links, stepped window by window by one or
// several threads, with the same result for any number of them. A run is its plan, and a plan holds its seed.
#pragma once

#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "native/sim/fabric/fabric_shard.h"

namespace weft::sim {

// As little memory as no memory: a thread that a run needs cannot be made.
class NoThread final : public std::bad_alloc {
 public:
  NoThread(std::size_t number, std::size_t of) noexcept {
    static_cast<void>(
        std::snprintf(words_, sizeof words_, "thread %zu of %zu could not be made: run with fewer", number, of));
  }
  const char* what() const noexcept override { return words_; }

 private:
  char words_[80];
};

class Fabric {
 public:
  // The plan must outlive it, and hold: complaint(plan) is empty.
  explicit Fabric(const FabricPlan& plan);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // Goes on for about so many packet-hops. False: it is over (all is through, the limit is reached, or it failed).
  // Throws NoThread, when it may be called again, or std::bad_alloc, when it is over.
  bool run(i64 hops);

  FabricTotals totals();
  const std::string& violation() const noexcept { return violation_; }
  const std::string& policy_failure() const noexcept { return policy_failure_; }
  const std::vector<TransferReport>& transfers() const noexcept { return work_.transfers; }
  std::vector<StreamReport> streams();
  std::vector<PortReport> ports() const;
  const FabricSamples& samples() const noexcept { return samples_; }
  FabricHost& host(u32 index) noexcept { return *nodes_.hosts[index]; }

 private:
  class Crew;
  void make_hosts();
  void make_connections();
  void open_peer(const FabricConnection& connection, u32 number, u32* at_sender, u32* at_receiver);
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
  i64 window_ = 0;  // that comes next
  i64 windows_ = 0;
  bool over_ = false, finished_ = false;
  i64 now_ps_ = 0;
  std::string violation_, policy_failure_;
  FabricSamples samples_;
};

}  // namespace weft::sim
