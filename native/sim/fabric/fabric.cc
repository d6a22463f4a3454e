// The loop over time windows, run by one or several threads: handle a window, wait for the other threads, take over
// packets from other shards, agree on the next window. Plans are validated in fabric_plan.cc, setup is in
// fabric_setup.cc, reports are in fabric_report.cc.
#include "native/sim/fabric/fabric.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "native/sim/barrier.h"

namespace weft::sim {

// State shared by the threads of one run(). Each thread writes its own elements, and all threads read them between two
// barriers.
class Fabric::Crew {
 public:
  explicit Crew(std::size_t size) : barrier(size), next(size), hops(size), through(size) {}
  Barrier barrier;
  std::atomic<int> begun{0};  // 1: all threads exist; -1: some could not be created
  std::vector<i64> next;      // per shard: number of the next window of virtual time with an event
  std::vector<i64> hops;
  std::vector<i64> through;  // per thread: transfers received plus transfers sent by its hosts
};

bool Fabric::run(i64 hops) {
  if (over_) return false;
  const auto count = static_cast<u32>(shards_.size());
  Crew crew(count);
  std::vector<std::thread> others;
  others.reserve(count);
  const auto begin = [&](int how) {
    crew.begun.store(how, std::memory_order_release);
    crew.begun.notify_all();
  };
  try {
    for (u32 i = 1; i < count; ++i) {
      others.emplace_back([this, i, hops, &crew] {
        crew.begun.wait(0, std::memory_order_acquire);
        if (crew.begun.load(std::memory_order_acquire) == 1) step_thread(i, hops, &crew);
      });
    }
  } catch (...) {  // no thread has done a step yet, so the caller may try again with fewer threads
    begin(-1);
    for (std::thread& other : others) other.join();
    throw NoThread(others.size() + 2, count);
  }
  begin(1);
  step_thread(0, hops, &crew);
  for (std::thread& other : others) other.join();
  for (const auto& shard : shards_) {
    if (!shard->starved()) continue;
    over_ = true;
    throw std::bad_alloc();  // a window of virtual time was not handled completely: its state must not be reported
  }
  if (over_) settle_accounts();
  return !over_;
}

i64 Fabric::next_sample_ps() const noexcept {
  return plan_.sample_ns == 0 ? core::kNever : static_cast<i64>(samples_.at_ns.size()) * plan_.sample_ns * 1000;
}

// The loop of one thread of a run. All threads make the same decisions from the same numbers; only thread 0 writes the
// members of Fabric.
void Fabric::step_thread(u32 index, i64 hops, Crew* crew) {
  FabricShard& shard = *shards_[index];
  const bool alone = shards_.size() == 1;
  const auto wait = [&] {
    if (!alone) crew->barrier.wait();
  };
  const i64 all = 2 * static_cast<i64>(plan_.transfers.size());
  i64 begun_at = 0;
  for (const auto& each : shards_) begun_at += each->packet_hops();
  wait();  // no shard's packet_hops() may change before all threads have summed them in begun_at
  for (;;) {
    crew->next[index] = shard.next_window();
    crew->hops[index] = shard.packet_hops();
    crew->through[index] = shard.shared().received + shard.shared().sent;
    wait();
    i64 next = core::kNever, done = -begun_at, through = 0;
    bool failed = false;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      next = std::min(next, crew->next[i]);
      done += crew->hops[i];
      through += crew->through[i];
      failed = failed || shards_[i]->starved() || !shards_[i]->shared().failure.empty();
    }
    const bool late = next == core::kNever || next * window_ps_ > plan_.limit_ns * 1000;
    const bool over = failed || late || through == all;
    if (index == 0) {
      const i64 until_ps = late ? std::min(plan_.limit_ns * 1000, now_ps_ + window_ps_) : next * window_ps_;
      shard.guarded([&] {
        while (next_sample_ps() <= until_ps) sample(next_sample_ps());
      });
      over_ = over;
      finished_ = through == all && !failed;
      if (!over) now_ps_ = (next + 1) * window_ps_;
      if (!over) ++windows_;
    }
    wait();  // by now thread 0 has sampled ports and flows, and all threads have read the numbers in `crew`
    if (over || done >= hops) return;
    shard.clear_outboxes();
    shard.guarded([&] { shard.step(next); });
    wait();
    shard.guarded([&] {
      for (std::size_t i = 0; i < shards_.size(); ++i) {
        if (i != index) shard.import_from(*shards_[i]);
      }
    });
    // Outboxes are cleared in the next iteration, after two barriers, when no thread reads them any more.
  }
}

}  // namespace weft::sim
