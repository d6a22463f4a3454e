// The loop over time windows, run by one or several threads: handle a window, wait for the other threads, take over
// packets from other shards, agree on the next window. Plans are validated in fabric_plan.cc, setup is in
// fabric_setup.cc, reports are in fabric_report.cc.
#include "native/sim/fabric/fabric.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "native/sim/barrier.h"

namespace weft::sim {

// State shared by the threads of one run(). Each thread writes its own elements, and all threads read them between two
// barriers.
class Fabric::Crew {
 public:
  explicit Crew(std::size_t size) : barrier(size), told(size) {}
  Barrier barrier;
  std::atomic<int> begun{0};  // 1: all threads exist; -1: some could not be created
  struct Told {
    std::array<i64, FabricCalendar::kColors> next{};  // number of the next window with an event, by color of its node
    i64 hops = 0;
    i64 through = 0;  // transfers received plus transfers sent by the shard's hosts
    bool lasts = false, failed = false, starved = false;
  };
  std::vector<Told> told;  // per shard
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

// What all threads know between two rounds, from what all shards told.
Fabric::Standing Fabric::standing(const Crew& crew) const {
  Standing now;
  for (const Crew::Told& told : crew.told) {
    for (std::size_t color = 0; color < now.next.size(); ++color) {
      now.next[color] = std::min(now.next[color], told.next[color]);
    }
    now.hops += told.hops;
    now.through += told.through;
    now.lasts = now.lasts || told.lasts;
    now.starved = now.starved || told.starved;
    now.failed = now.failed || told.failed || told.starved;
  }
  return now;
}

void Fabric::tell(FabricShard* shard, Crew* crew) const {
  Crew::Told& told = crew->told[shard->index()];
  for (std::size_t color = 0; color < told.next.size(); ++color) told.next[color] = shard->next_window(color);
  told.hops = shard->packet_hops();
  told.through = shard->shared().received + shard->shared().sent;
  told.lasts = shard->lasts();
  told.failed = !shard->shared().failure.empty();
  told.starved = shard->starved();
}

// Chooses the next round after all nodes have handled all events before `front` and, if `ahead` is not kColors, the
// nodes of color `ahead` also those of window `front`. Nodes of the other color may then handle two windows at once,
// because what arrives there was sent before. Hosts do so only if the run cannot end within the first of the two: it
// ends at the first window after which all transfers are done, whatever the rounds.
Fabric::Round Fabric::choose(const Standing& now, i64 front, std::size_t ahead, bool go_on) const {
  constexpr u32 kBoth = 3;
  const i64 last = plan_.limit_ns * 1000 / window_ps_;  // the last window that may be handled
  const bool crowded = now.next[0] <= front + 1 && now.next[1] <= front + 1;
  const bool may_pair = nodes_.paired && go_on && crowded && front + 1 <= last;
  if (ahead == FabricCalendar::kColors) return may_pair && now.lasts ? Round{1, front + 1} : Round{kBoth, front + 1};
  const std::size_t color = 1 - ahead;
  return {1u << color, front + (may_pair && (color != 0 || now.lasts) ? 2 : 1)};
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
  std::array<i64, FabricCalendar::kColors> front{};
  front.fill(now_ps_ / window_ps_);
  for (;;) {
    tell(&shard, crew);
    wait();
    const Standing now = standing(*crew);
    const bool level = front[0] == front[1];
    const bool enough = now.hops - begun_at >= hops;
    const i64 next = std::min(now.next[0], now.next[1]);
    const bool late = next == core::kNever || next * window_ps_ > plan_.limit_ns * 1000;
    // A shard without memory may have handled a part of a window only, so no round may follow.
    const bool over = now.starved || (level && (now.failed || late || now.through == all));
    if (index == 0 && (level || over)) {
      now_ps_ = std::max(now_ps_, front[0] * window_ps_);
      const i64 until_ps = late ? std::min(plan_.limit_ns * 1000, now_ps_ + window_ps_) : next * window_ps_;
      shard.guarded([&] {
        while (next_sample_ps() <= until_ps) sample(next_sample_ps());
      });
      over_ = over;
      finished_ = now.through == all && !now.failed;
    }
    if (plan_.sample_ns != 0) wait();  // thread 0 samples ports and flows of all shards
    if (over || (level && enough)) return;
    if (level) front.fill(next);
    const std::size_t ahead = level ? FabricCalendar::kColors : front[0] > front[1] ? 0 : 1;
    const bool go_on = !enough && !now.failed && now.through != all;
    const Round round = choose(now, std::min(front[0], front[1]), ahead, go_on);
    if (index == 0) windows_ += level ? 1 : round.end - std::max(front[0], front[1]);
    shard.guarded([&] {
      if (level) shard.skip_to(next);
      shard.step(round.colors, round.end);
    });
    for (std::size_t color = 0; color < front.size(); ++color) {
      if ((round.colors >> color & 1u) != 0) front[color] = round.end;
    }
    wait();  // all outboxes are complete, and all threads have read what `crew` was told
    shard.guarded([&] {
      for (std::size_t i = 0; i < shards_.size(); ++i) {
        if (i != index) shard.import_from(*shards_[i]);
      }
    });
  }
}

}  // namespace weft::sim
