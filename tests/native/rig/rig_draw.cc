// Generates schedules from seeds. Each kind of fault is included or not independently of the others, so that all pairs
// of kinds occur. Sizes are small, so that ten thousand runs take less than a minute.
#include <cmath>

#include "tests/native/rig/rig_state.h"

namespace weft::sim {
namespace {

core::PolicyChoice draw_policy(const std::vector<core::PolicyChoice>& menu, core::Random& random) {
  return menu.empty() ? core::PolicyChoice{} : menu[random.next() % menu.size()];
}

void draw_faults(Schedule* schedule, core::Random& random) {
  const auto coin = [&](double probability) { return random.uniform() < probability; };
  LinkFaults& faults = schedule->faults;
  faults.delay_ns = 5'000 + static_cast<i64>(random.next() % 200'000);
  if (coin(0.5)) faults.loss = random.uniform() * (coin(0.1) ? 0.3 : 0.05);
  if (coin(0.4)) faults.reorder = random.uniform() * 0.3;
  if (coin(0.4)) faults.duplicate = random.uniform() * 0.2;
  if (coin(0.4)) faults.corrupt = random.uniform() * 0.05;
  if (coin(0.3)) faults.jitter_ns = 1 + static_cast<i64>(random.next() % 2'000'000);
  if (coin(0.3)) faults.mark = random.uniform() * 0.3;
  if (coin(0.3)) faults.replay = random.uniform() * 0.1;
  if (coin(0.3)) faults.stray = random.uniform() * 0.1;
  if (coin(0.2)) faults.bytes_per_s = 10'000'000 + static_cast<i64>(random.next() % 1'000'000'000);
  if (schedule->paths > 1 && coin(0.25)) {
    const std::size_t dead = 1 + random.next() % schedule->paths;  // possibly all paths fail at once
    for (std::size_t i = 0; i < dead; ++i) {
      const auto from = static_cast<i64>(random.next() % 3'000'000);
      schedule->outages.push_back(
          {static_cast<u8>(i), from, from + 1'000'000 + static_cast<i64>(random.next() % 300'000'000)});
    }
  }
}

void draw_swaps(Schedule* schedule, const PolicyMenu& menu, core::Random& random) {
  i64 at_ns = 1'000'000;
  for (u64 left = 1 + random.next() % 8; left != 0; --left) {
    PolicySwap swap;
    swap.at_ns = at_ns += static_cast<i64>(random.next() % 1'000'000);
    swap.end = static_cast<int>(random.next() % 2);
    swap.family = static_cast<policy::Family>(1 + random.next() % 4);
    const std::vector<core::PolicyChoice>& choices = swap.family == policy::Family::window ? menu.window
                                                     : swap.family == policy::Family::path ? menu.path
                                                     : swap.family == policy::Family::loss ? menu.loss
                                                                                           : menu.credit;
    swap.choice = draw_policy(choices, random);
    const bool none = swap.family == policy::Family::credit && random.next() % 2 == 0;
    if (none) swap.choice = {};
    schedule->swaps.push_back(swap);
  }
}

}  // namespace

u64 draw_bytes(const Schedule& schedule, core::Random& random) noexcept {
  const double kind = random.uniform();
  if (kind < schedule.zero_fraction) return 0;
  if (kind < schedule.zero_fraction + schedule.small_fraction) {
    return 1 + random.next() % (schedule.eager_bytes == 0 ? 1 : schedule.eager_bytes);
  }
  const double span = std::log(static_cast<double>(schedule.message_bytes_max < 2 ? 2 : schedule.message_bytes_max));
  const auto bytes = static_cast<u64>(std::exp(random.uniform() * span));
  return bytes > schedule.message_bytes_max ? schedule.message_bytes_max : bytes;
}

Schedule draw_schedule(u64 seed, const PolicyMenu& menu) {
  core::Random random(seed ^ 0x5EEDu);
  const auto coin = [&](double probability) { return random.uniform() < probability; };
  Schedule schedule;
  schedule.seed = seed;
  schedule.paths = static_cast<u16>(1 + random.next() % 8);
  constexpr u16 kSegmentBytes[] = {576, 1472, 4096, 9000};
  schedule.segment_bytes = kSegmentBytes[random.next() % 4];
  schedule.stripes = static_cast<u8>(coin(0.7) ? 1 : 2 + random.next() % 3);
  schedule.messages = static_cast<u32>(2 + random.next() % 11);
  schedule.message_bytes_max = coin(0.15) ? 600'000 : 1 + random.next() % 60'000;
  schedule.both_ways = coin(0.5);
  schedule.post_gap_ns_max = static_cast<i64>(random.next() % (coin(0.5) ? 2'000 : 1'000'000));
  schedule.eager_bytes = coin(0.2) ? 0 : 1 + random.next() % 8192;
  schedule.eager_slots = 1 + random.next() % 8;
  schedule.window_bytes_max = 65'536 << (random.next() % 6);
  schedule.port_buffer_bytes = 65'536 << (random.next() % 5);
  schedule.window = draw_policy(menu.window, random);
  schedule.path = draw_policy(menu.path, random);
  schedule.loss = draw_policy(menu.loss, random);
  if (coin(0.25)) schedule.credit = draw_policy(menu.credit, random);
  draw_faults(&schedule, random);
  if (coin(0.08)) schedule.dies_at_ns = 1'000'000 + static_cast<i64>(random.next() % 3'000'000);
  if (coin(0.08)) schedule.close_at_ns = 1'000'000 + static_cast<i64>(random.next() % 3'000'000);
  if (coin(0.08)) schedule.send_too_long = true;
  if (coin(0.2)) draw_swaps(&schedule, menu, random);
  schedule.windows = coin(0.3);
  schedule.late_reads = coin(0.3);
  if (coin(0.3)) schedule.staged_sends = random.uniform();
  if (coin(0.3)) schedule.staged_receives = random.uniform();
  return schedule;
}

u32 fault_kinds(const Schedule& schedule) noexcept {
  u32 kinds = 0;
  if (schedule.faults.loss > 0) kinds |= kLoss;
  if (schedule.faults.reorder > 0) kinds |= kReorder;
  if (schedule.faults.duplicate > 0) kinds |= kDuplicate;
  if (schedule.faults.corrupt > 0) kinds |= kCorrupt;
  if (schedule.faults.jitter_ns > 0) kinds |= kDelay;
  if (!schedule.outages.empty()) kinds |= kDeadPath;
  if (schedule.dies_at_ns >= 0) kinds |= kDeadPeer;
  if (schedule.faults.replay > 0) kinds |= kReplay;
  if (schedule.faults.stray > 0) kinds |= kStray;
  if (schedule.close_at_ns >= 0) kinds |= kEarlyClose;
  if (schedule.send_too_long) kinds |= kTooLong;
  if (!schedule.swaps.empty()) kinds |= kSwap;
  if (schedule.windows) kinds |= kWindows;
  if (schedule.late_reads) kinds |= kLateReads;
  if (schedule.staged_sends > 0) kinds |= kStagedSends;
  if (schedule.staged_receives > 0) kinds |= kStagedReceives;
  return kinds;
}

u64 schedule_hash(const Schedule& schedule) noexcept {
  u64 hash = 0xCBF29CE484222325u;
  const auto mix = [&](u64 value) { hash = (hash ^ value) * 0x100000001B3u; };
  const auto mix_real = [&](double value) { mix(static_cast<u64>(value * 1e12)); };
  // The seed is not part of the hash, so that two seeds with the same schedule count as one schedule.
  for (const u64 value :
       {u64{schedule.paths}, u64{schedule.segment_bytes}, u64{schedule.stripes}, u64{schedule.messages},
        u64{schedule.windows}, u64{schedule.late_reads}, schedule.message_bytes_max, schedule.eager_bytes,
        schedule.eager_slots, static_cast<u64>(schedule.post_gap_ns_max), static_cast<u64>(schedule.window_bytes_max),
        static_cast<u64>(schedule.dies_at_ns), static_cast<u64>(schedule.close_at_ns),
        static_cast<u64>(schedule.faults.delay_ns), static_cast<u64>(schedule.faults.jitter_ns),
        static_cast<u64>(schedule.faults.bytes_per_s)}) {
    mix(value);
  }
  for (const double value : {schedule.faults.loss, schedule.faults.reorder, schedule.faults.duplicate,
                             schedule.faults.corrupt, schedule.faults.mark, schedule.faults.replay,
                             schedule.faults.stray, schedule.staged_sends, schedule.staged_receives}) {
    mix_real(value);
  }
  for (const PathOutage& outage : schedule.outages) {
    mix(outage.path);
    mix(static_cast<u64>(outage.from_ns));
    mix(static_cast<u64>(outage.until_ns));
  }
  for (const PolicySwap& swap : schedule.swaps) {
    mix(static_cast<u64>(swap.at_ns));
    mix(static_cast<u64>(swap.end) << 8 | static_cast<u64>(swap.family));
  }
  return hash;
}

}  // namespace weft::sim
