// Tests a million segments at one percent loss with fixed seeds: every message arrives, and resends are bounded.
#include <string>
#include <vector>

#include "tests/native/check.h"
#include "tests/native/pair.h"
#include "tests/native/rig/rig.h"

using namespace weft::core;
using weft::sim::RunReport;
using weft::sim::Schedule;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr u32 kMessages = 130;
constexpr i64 kSegments = 80'000;
#else
constexpr u32 kMessages = 1500;
constexpr i64 kSegments = 1'000'000;
#endif

Schedule schedule_of(u64 seed) {
  Schedule schedule;
  schedule.seed = seed;
  schedule.paths = 8;
  schedule.segment_bytes = 576;
  schedule.messages = kMessages;
  schedule.message_bytes_max = 1 << 20;
  schedule.zero_fraction = 0.01;
  schedule.small_fraction = 0.1;
  schedule.both_ways = false;
  schedule.post_gap_ns_max = 1000;
  schedule.eager_bytes = 8192;
  schedule.eager_slots = 16;
  schedule.window_bytes_max = 4 << 20;
  schedule.faults.loss = 0.01;
  schedule.faults.delay_ns = 25'000;
  schedule.faults.bytes_per_s = 1'000'000'000;
  schedule.window = weft::test::shipped(weft::policy::Family::window, "swift");
  schedule.path = weft::test::shipped(weft::policy::Family::path, "power_of_two");
  schedule.loss = weft::test::shipped(weft::policy::Family::loss, "rack");
  return schedule;
}

i64 run(const Schedule& schedule) {
  const RunReport report = weft::sim::run_schedule(schedule);
  CHECK_EQUAL(report.violation, "");
  CHECK_EQUAL(report.failed, 0);
  CHECK_EQUAL(report.completed, 2 * i64{kMessages});
  CHECK_EQUAL(report.corrupt_messages, 0);
  CHECK_EQUAL(report.policies_failed, 0);
  const i64 resent = report.counters[0].segments_resent;
  std::printf("     seed %llu: %lld segments, %lld dropped, %lld sent again\n",
              static_cast<unsigned long long>(schedule.seed), static_cast<long long>(report.counters[0].segments_sent),
              static_cast<long long>(report.link.lost_data), static_cast<long long>(resent));
  CHECK(report.link.lost_data > report.counters[0].segments_sent / 200);
  CHECK(2 * resent <= 3 * report.link.lost_data);
  return report.counters[0].segments_sent;
}

}  // namespace

TEST(loss__a_million_segments_arrive) {
  i64 segments = 0;
  for (u64 seed = 1; segments < kSegments && seed <= 12; ++seed) segments += run(schedule_of(seed));
  CHECK(segments >= kSegments);
}

TEST(loss__with_credit_in_force) {
  for (u64 seed = 101; seed <= 102; ++seed) {
    Schedule schedule = schedule_of(seed);
    schedule.credit = weft::test::shipped(weft::policy::Family::credit, "grant");
    static_cast<void>(run(schedule));
  }
}
