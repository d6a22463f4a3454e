// Tests path health (P-5): a silent path is not chosen, is probed at increasing intervals, and becomes usable again.
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "native/core/path_set.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;

namespace {

constexpr u16 kPaths = 4;
constexpr i64 kRoomBytes = 100'000;
constexpr i64 kMs = 1'000'000;

PickRequest request_of(int avoid = -1) {
  PickRequest request;
  request.ready_bytes = 1 << 20;
  request.segment_bytes = 1400;
  request.avoid_path = avoid;
  request.is_resend = avoid >= 0;
  return request;
}

struct Bench {
  explicit Bench(const StackConfig& config = {}) : shared(config), paths(&shared, {}, 7, kPaths, kRoomBytes, 1400) {}
  std::set<int> picks(i64 now_ns, int avoid = -1) {
    std::set<int> seen;
    for (int i = 0; i < 400; ++i) seen.insert(paths.pick(now_ns, request_of(avoid)).path);
    return seen;
  }
  int poll_probe(i64 now_ns, u64* probe_id) {
    u16 bytes = 1;
    const int path = paths.poll_probe(now_ns, probe_id, &bytes);
    CHECK_EQUAL(bytes, 0);  // 0: the probe does not test a datagram size
    return path;
  }
  bool answer(i64 now_ns, u8 path, u64 probe_id) {
    shared.host.on_datagram(now_ns, 0);
    return paths.on_probe_reply(now_ns, path, probe_id);
  }
  int events(Event::Kind kind, u8 path) {
    int count = 0;
    for (Event event; shared.events.poll(&event);) count += event.kind == kind && event.path == path ? 1 : 0;
    return count;
  }
  Shared shared;
  PathSet paths;
};

std::vector<StackConfig> configs() {
  std::vector<StackConfig> all(3);
  all[1].path = weft::test::shipped(weft::policy::Family::path, "power_of_two");
  all[2].path = weft::test::shipped(weft::policy::Family::path, "oblivious");
  return all;
}

}  // namespace

TEST(path_set__a_silent_path_is_not_chosen_is_probed_and_comes_back) {
  for (const StackConfig& config : configs()) {
    Bench bench(config);
    CHECK(bench.picks(kMs) == std::set<int>({0, 1, 2, 3}));
    bench.paths.on_timeout(20 * kMs, 2, 10 * kMs, -1);
    CHECK(!bench.paths.path(2).usable);
    CHECK_EQUAL(bench.events(Event::Kind::path_down, 2), 1);
    CHECK(bench.picks(20 * kMs) == std::set<int>({0, 1, 3}));
    u64 probe_id = 0;
    CHECK_EQUAL(bench.poll_probe(20 * kMs, &probe_id), 2);
    CHECK_EQUAL(bench.poll_probe(20 * kMs, &probe_id), -1);
    static_cast<void>(bench.answer(21 * kMs, 2, probe_id));
    CHECK(bench.paths.path(2).usable);
    CHECK_EQUAL(bench.events(Event::Kind::path_up, 2), 1);
    CHECK_EQUAL(bench.paths.path(2).rtt.smoothed_ns(), kMs);
    // Give the other paths feedback, too, or a policy that measures would choose only path 2.
    for (const u8 path : {u8{0}, u8{1}, u8{3}})
      bench.paths.on_feedback(21 * kMs, path, PathSet::Feedback::good, {kMs}, 1400, -1);
    CHECK(bench.picks(21 * kMs) == std::set<int>({0, 1, 2, 3}));
    CHECK_EQUAL(bench.paths.poll_timeout(), kNever);
  }
}

TEST(path_set__a_path_heard_since_then_is_not_silent) {
  Bench bench;
  static_cast<void>(bench.picks(kMs));  // sends something that can be answered
  bench.paths.on_heard(15 * kMs, 1);
  bench.paths.on_timeout(20 * kMs, 1, 10 * kMs, -1);
  CHECK(bench.paths.path(1).usable);
  bench.paths.on_timeout(20 * kMs, 1, 16 * kMs, -1);
  CHECK(!bench.paths.path(1).usable);
  bench.paths.on_heard(21 * kMs, 1);
  CHECK(bench.paths.path(1).usable);
}

TEST(path_set__probes_pause_twice_as_long_each_time_up_to_the_bound) {
  StackConfig config;
  config.rto_ns_max = 100 * kMs;
  Bench bench(config);
  bench.paths.on_timeout(0, 0, 0, -1);
  i64 last_ns = bench.paths.poll_timeout(), pause_ns = 0;
  u64 probe_id = 0;
  for (int i = 0; i < 12; ++i) {
    CHECK_EQUAL(bench.poll_probe(last_ns, &probe_id), 0);
    const i64 next_ns = bench.paths.poll_timeout();
    CHECK(next_ns > last_ns);
    CHECK(pause_ns == 0 || next_ns - last_ns == std::min(2 * pause_ns, config.rto_ns_max));
    pause_ns = next_ns - last_ns;
    last_ns = next_ns;
  }
  CHECK_EQUAL(pause_ns, config.rto_ns_max);
}

TEST(path_set__only_the_answer_to_the_last_probe_counts) {
  Bench bench;
  bench.paths.on_timeout(20 * kMs, 3, 10 * kMs, -1);
  u64 first = 0, second = 0;
  CHECK_EQUAL(bench.poll_probe(20 * kMs, &first), 3);
  CHECK_EQUAL(bench.poll_probe(bench.paths.poll_timeout(), &second), 3);
  const i64 now_ns = 1000 * kMs;
  static_cast<void>(bench.answer(now_ns, 3, first));
  static_cast<void>(bench.answer(now_ns, 3, 0));
  CHECK(!bench.paths.path(3).usable);
  CHECK(!bench.paths.path(3).rtt.measured());
  static_cast<void>(bench.answer(now_ns, 3, second));
  CHECK(bench.paths.path(3).usable);
}

// The RTT is much longer than both ends have measured, and each probe that arrives makes an end probe again before the
// answer to its last probe can arrive. Late answers must count, or the path would stay down.
TEST(path_set__a_path_comes_back_although_the_other_end_keeps_probing) {
  constexpr i64 kRttNs = 40 * kMs, kStepNs = kMs;
  Bench bench;
  bench.paths.know(kMs / 100);
  bench.paths.on_timeout(0, 2, 0, -1);
  std::deque<std::pair<i64, u64>> answers;
  i64 now_ns = 0;
  for (; !bench.paths.path(2).usable && now_ns < 100 * kRttNs; now_ns += kStepNs) {
    u64 probe_id = 0;
    if (bench.poll_probe(now_ns, &probe_id) == 2) answers.emplace_back(now_ns + kRttNs, probe_id);
    bench.paths.on_probed_by_peer(now_ns, 2);
    for (; !answers.empty() && answers.front().first <= now_ns; answers.pop_front())
      static_cast<void>(bench.answer(now_ns, 2, answers.front().second));
  }
  CHECK(bench.paths.path(2).usable);
  CHECK(now_ns <= 6 * kRttNs);
}

TEST(path_set__a_copy_avoids_the_path_that_lost_it) {
  for (const StackConfig& config : configs()) {
    Bench bench(config);
    for (int avoid = 0; avoid < kPaths; ++avoid) CHECK_EQUAL(bench.picks(kMs, avoid).count(avoid), 0u);
    for (u8 path = 1; path < kPaths; ++path) bench.paths.on_timeout(20 * kMs, path, 10 * kMs, -1);
    // If only one path is usable, it is used even if the segment was lost there.
    CHECK(bench.picks(21 * kMs, 0) == std::set<int>({0}));
    // If no path is usable, all paths are tried.
    bench.paths.on_timeout(20 * kMs, 0, 10 * kMs, -1);
    CHECK(!bench.paths.any_usable());
    CHECK(!bench.picks(21 * kMs).empty());
    CHECK_EQUAL(bench.picks(21 * kMs).count(-1), 0u);
  }
}

TEST(path_set__a_full_path_is_not_chosen) {
  Bench bench;
  bench.paths.on_sent(0, kRoomBytes, 10);
  bench.paths.on_sent(1, kRoomBytes - 1399, 10);
  CHECK(bench.picks(kMs) == std::set<int>({2, 3}));
  bench.paths.on_sent(2, kRoomBytes, 10);
  bench.paths.on_sent(3, kRoomBytes, 10);
  CHECK(bench.picks(kMs) == std::set<int>({-1}));
  CHECK(!bench.paths.has_room(1400));
  bench.paths.on_gone(3, 5000);
  CHECK(bench.picks(kMs) == std::set<int>({3}));
  CHECK(bench.paths.pick(kMs, request_of()).burst_bytes <= 5000);
}
