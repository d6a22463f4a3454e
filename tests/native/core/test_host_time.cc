// Tests that window and loss policies do not mistake a host that lacks CPU time for a congested network.
#include <deque>

#include "native/core/host_time.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::test::Pair;
using weft::test::Wired;

namespace {

constexpr i64 kUs = 1'000, kMs = 1'000'000;
constexpr i64 kDelayNs = 20 * kUs;  // network delay in each direction
constexpr i64 kAwayNs = 10 * kMs;
constexpr u64 kBytes = 64 << 20;

struct Mail {
  i64 arrived_ns;
  Wired packet;
};

// Two ends: both run all the time at first; then end 1 runs only once in 10 ms, as if another thread had its CPU.
struct Starved {
  explicit Starved(bool says_when) : pair(weft::test::shipped_config()), says_when_(says_when) {}

  // Runs until `bytes` bytes have arrived, for at most a minute.
  bool run(u64 bytes) {
    i64 ran_ns = pair.now_ns;
    while (pair.received_bytes(1) < bytes && pair.now_ns < 60'000 * kMs) {
      pair.now_ns += kDelayNs;
      take_turn(0, &to_sender, &to_receiver);
      const bool starved = pair.received_bytes(1) > kBytes / 8;
      if (starved && pair.now_ns < ran_ns + kAwayNs) continue;
      if (starved && says_when_) pair.stack[1].on_away(ran_ns, pair.now_ns);
      ran_ns = pair.now_ns;
      take_turn(1, &to_receiver, &to_sender);
    }
    return pair.received_bytes(1) >= bytes;
  }

  void take_turn(int end, std::deque<Mail>* in, std::deque<Mail>* out) {
    for (; !in->empty() && in->front().arrived_ns <= pair.now_ns; in->pop_front()) {
      const i64 arrived_ns = says_when_ ? in->front().arrived_ns : 0;
      pair.stack[end].on_datagram(pair.now_ns, in->front().packet.view(), arrived_ns);
    }
    pair.stack[end].on_timer(pair.now_ns);
    for (Wired& packet : pair.take(end)) out->push_back({pair.now_ns + kDelayNs, std::move(packet)});
  }

  Pair pair;
  std::deque<Mail> to_sender, to_receiver;
  bool says_when_;
};

struct Found {
  i64 took_ns = 0, rtt_min_ns = 0, resent = 0;
};

Found transfer(bool says_when) {
  Starved starved(says_when);
  Pair& pair = starved.pair;
  const std::vector<u8> data = weft::test::pattern(kBytes, 1);
  std::vector<u8> room(kBytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(1, room.data(), kBytes, &ticket), weft::Status::ok);
  CHECK_EQUAL(pair.send(0, data.data(), kBytes), weft::Status::ok);
  const i64 began_ns = pair.now_ns;
  CHECK(starved.run(kBytes));
  CHECK(room == data);
  Found found;
  found.took_ns = pair.now_ns - began_ns;
  found.resent = pair.stack[0].flow(pair.flow[0])->tx.counters().segments_resent;
  found.rtt_min_ns = pair.stack[0].peer(pair.peer[0])->paths().path(0).rtt.min_ns();
  return found;
}

}  // namespace

TEST(host_time__a_datagram_waits_for_what_its_thread_was_away) {
  HostTime host;
  host.on_away(100, 200);
  host.on_datagram(210, 150);  // arrived while the thread was away
  CHECK_EQUAL(host.arrived_ns(), 150);
  CHECK_EQUAL(host.away_ns() - host.away_at_arrival_ns(), 50);
  host.on_datagram(210, 50);  // arrived before the thread was away
  CHECK_EQUAL(host.away_ns() - host.away_at_arrival_ns(), 100);
  host.on_datagram(210, 205);  // arrived after the thread was away
  CHECK_EQUAL(host.away_ns() - host.away_at_arrival_ns(), 0);
  host.on_datagram(210, 0);  // has no time stamp
  CHECK_EQUAL(host.arrived_ns(), 210);
  host.on_datagram(210, 300);  // arrived during the loop iteration that began at 210
  CHECK_EQUAL(host.arrived_ns(), 300);
  CHECK_EQUAL(host.late_ns(), 0);
  host.on_away(150, 250);  // overlaps the time reported before
  CHECK_EQUAL(host.away_ns(), 150);
  host.on_away(150, 200);
  CHECK_EQUAL(host.away_ns(), 150);
}

TEST(host_time__what_is_told_in_two_parts_is_one_time_away) {
  HostTime host;
  host.on_away(100, 200);
  host.on_away(1000, 3000);  // first report: away until the sleep ended
  host.on_away(1000, 3001);  // second report: until the next loop iteration began
  CHECK_EQUAL(host.away_ns(), 2101);
  host.on_datagram(3001, 1500);
  CHECK_EQUAL(host.away_ns() - host.away_at_arrival_ns(), 1501);
}

TEST(rtt__what_policies_are_told_without_a_sample_is_the_networks) {
  RttEstimator rtt;
  CHECK_EQUAL(rtt.smoothed_network_ns(), 0);
  for (int i = 0; i < 400; ++i) rtt.on_sample(50 * kUs, i % 4 == 0 ? 20 * kMs : 0);
  const i64 off_ns = rtt.smoothed_network_ns() - 50 * kUs;
  CHECK(off_ns > -100 && off_ns < 100);
  CHECK(rtt.smoothed_ns() > kMs);
}

TEST(host_time__the_last_late_departures_are_known) {
  HostTime host;
  CHECK(!host.left_late(0));
  for (i64 at = 100; at < 600; at += 100) host.on_late_departure(at, at + 10);
  CHECK(!host.left_late(105));  // only the last four are remembered, and this is the first of five
  for (i64 at = 200; at < 600; at += 100)
    CHECK(host.left_late(at) && host.left_late(at + 10) && !host.left_late(at + 11));
}

TEST(host_time__the_longest_delay_is_forgotten_by_and_by) {
  HostPeak peak;
  peak.add(0, 8 * kMs);
  peak.add(10 * kMs, kMs);
  CHECK_EQUAL(peak.peak_ns(), 8 * kMs);
  peak.add(1'001 * kMs, 0);
  CHECK_EQUAL(peak.peak_ns(), 4 * kMs);
  peak.add(3'002 * kMs, 0);
  CHECK_EQUAL(peak.peak_ns(), kMs);
  peak.add(3'003 * kMs, 30'000 * kMs);
  CHECK_EQUAL(peak.peak_ns(), 100 * kMs);
}

TEST(host_time__a_starved_receiver_is_no_congestion) {
  const Found told = transfer(true), untold = transfer(false);
  // The minimum may be slightly less, as send times in a burst are ahead of the clock by a nanosecond per segment.
  CHECK(told.rtt_min_ns <= 2 * kDelayNs && told.rtt_min_ns > kDelayNs);
  std::printf(
      "64 MiB to a receiver that runs once in 10 ms: %lld ms, %lld resent; if the stack does not know this: %lld ms, "
      "%lld\n",
      static_cast<long long>(told.took_ns / kMs), static_cast<long long>(told.resent),
      static_cast<long long>(untold.took_ns / kMs), static_cast<long long>(untold.resent));
  CHECK(told.resent < static_cast<i64>(kBytes / 1472 / 100));
  CHECK(2 * told.took_ns < untold.took_ns);
}
