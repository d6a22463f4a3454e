// Tests when an acknowledgment is due, and what it reports about each path.
#include <vector>

#include "native/core/ack_schedule.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr u64 kWaitBytes = 10'000;
constexpr i64 kWaitNs = 30'000;
constexpr i64 kNow = 1'000'000'000;

struct Bench {
  explicit Bench(u16 paths = 8) : acks(paths, kWaitBytes, kWaitNs) { CHECK(acks.activate()); }
  void segment(i64 now_ns, u8 path, i64 sent_ns, u64 bytes, bool marked = false) {
    host.on_datagram(now_ns, 0);
    acks.on_segment(now_ns, host, path, sent_ns, bytes, marked);
  }
  std::vector<weft::wire::PathReport> take(i64 now_ns) {
    weft::wire::PathReport reports[weft::wire::kAckReportsMax];
    const u8 count = acks.take_reports(now_ns, host, reports);
    return {reports, reports + count};
  }
  AckSchedule acks;
  HostTime host;
};

}  // namespace

TEST(ack_schedule__waits_for_bytes_or_time) {
  Bench bench;
  CHECK(!bench.acks.pending());
  CHECK_EQUAL(bench.acks.poll_timeout(), kNever);
  bench.segment(kNow, 3, kNow - 500, 4'000);
  bench.segment(kNow + 1'000, 3, kNow - 400, 4'000);
  CHECK(!bench.acks.due(kNow + 1'000));
  CHECK_EQUAL(bench.acks.poll_timeout(), kNow + kWaitNs);  // counted from the first segment
  CHECK(bench.acks.due(kNow + kWaitNs));
  bench.segment(kNow + 2'000, 3, kNow - 300, 2'000);
  CHECK(bench.acks.due(kNow + 2'000));
  CHECK_EQUAL(bench.acks.poll_timeout(), kNever);  // no timer, because an acknowledgment is due now
}

TEST(ack_schedule__a_mark_a_duplicate_and_a_whole_message_are_due_at_once) {
  for (int reason = 0; reason < 3; ++reason) {
    Bench bench;
    bench.segment(kNow, 0, kNow - 500, 100, reason == 0);
    if (reason == 1) bench.acks.on_due(0);
    if (reason == 2) bench.acks.on_message_whole();
    CHECK(bench.acks.due(kNow));
    CHECK_EQUAL(bench.take(kNow).size(), 1u);
    CHECK(!bench.acks.due(kNow + kWaitNs));
    CHECK(!bench.acks.pending());
  }
}

// A path's report has growing counts, echoes the newest send time, and gives the time since that segment arrived.
TEST(ack_schedule__a_report_echoes_the_newest_segment_of_its_path) {
  Bench bench;
  bench.segment(kNow, 2, 700, 100);
  bench.segment(kNow + 1'000, 2, 900, 100, true);
  bench.segment(kNow + 2'000, 2, 800, 100);  // sent before the previous segment, so it was overtaken
  auto reports = bench.take(kNow + 5'000);
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_EQUAL(static_cast<int>(reports[0].path), 2);
  CHECK_EQUAL(reports[0].echo_sent_ns, 900);
  CHECK_EQUAL(reports[0].ack_delay_ns, 4'000u);
  CHECK_EQUAL(reports[0].segments, 3u);
  CHECK_EQUAL(reports[0].ecn_segments, 1u);
  bench.segment(kNow + 6'000, 2, 1'000, 100);
  reports = bench.take(kNow + 6'000);
  CHECK_EQUAL(reports[0].segments, 4u);
  CHECK_EQUAL(reports[0].ecn_segments, 1u);
}

TEST(ack_schedule__more_paths_than_fit_are_reported_in_turn) {
  Bench bench(weft::policy::kMaxPaths);
  for (u16 path = 0; path < weft::policy::kMaxPaths; path += 7) bench.segment(kNow, static_cast<u8>(path), 500, 10);
  std::vector<int> seen;
  for (int packets = 0; bench.acks.pending(); ++packets) {
    CHECK(packets < 100);
    for (const auto& report : bench.take(kNow)) seen.push_back(report.path);
  }
  CHECK_EQUAL(seen.size(), static_cast<std::size_t>((weft::policy::kMaxPaths + 6) / 7));
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK_EQUAL(seen[i], static_cast<int>(7 * i));
}

// A duplicate, which makes an acknowledgment due, may arrive on a path that has received no other segment.
TEST(ack_schedule__a_path_without_a_segment_has_no_report) {
  Bench bench;
  bench.acks.on_due(5);
  CHECK(bench.acks.due(kNow));
  CHECK(bench.take(kNow).empty());
  CHECK(!bench.acks.pending());
}

TEST(ack_schedule__memory_is_kept_while_something_is_owed) {
  Bench bench;
  bench.segment(kNow, 1, 500, 10);
  bench.acks.release();
  CHECK(bench.acks.bytes_held() != 0);
  CHECK_EQUAL(bench.take(kNow).size(), 1u);
  bench.acks.release();
  CHECK_EQUAL(bench.acks.bytes_held(), 0u);
}

TEST(ack_schedule__the_time_that_this_host_was_away_is_told) {
  Bench bench;
  bench.segment(kNow, 0, 500, 10);
  bench.host.on_away(kNow + 1'000, kNow + 9'000);
  const auto reports = bench.take(kNow + 10'000);
  CHECK_EQUAL(reports[0].ack_delay_ns, 10'000u);
  CHECK(reports[0].away_ns > 0);
  CHECK(reports[0].away_ns <= reports[0].ack_delay_ns);
}
