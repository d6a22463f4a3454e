// Tests the arena's links (no packet is lost uncounted, queues, marks) and its runs (reproducible, a saturated link,
// consistent byte counts).
#include "native/policy/loader.h"
#include "native/sim/arena/arena.h"
#include "tests/native/check.h"

using namespace weft::sim;

namespace {

constexpr i64 kUs = 1'000;
constexpr i64 kMs = 1'000'000;

LinkConfig bottleneck(i64 bytes_per_s, i64 delay_ns, i64 queue_bytes_max) {
  LinkConfig config;
  config.bytes_per_s = bytes_per_s;
  config.delay_ns = delay_ns;
  config.queue_bytes_max = queue_bytes_max;
  return config;
}

// A packet of the given size without content.
Packet packet_of(u32 bytes) {
  Packet packet;
  packet.header_bytes = 64;
  packet.payload_bytes = bytes - 64;
  return packet;
}

ArenaPlan plan_of(u32 flows, u32 paths) {
  ArenaPlan plan;
  for (u32 i = 0; i < paths; ++i) plan.paths.push_back(bottleneck(1'250'000'000, 20 * kUs, 1 << 20));
  for (u32 i = 0; i < flows; ++i) {
    FlowPlan flow;
    flow.from = i;
    flow.to = flows + i;
    plan.flows.push_back(flow);
  }
  plan.limit_ns = 50 * kMs;
  plan.measure_from_ns = 10 * kMs;
  plan.window_bytes_max = 1 << 19;
  return plan;
}

void check_conserved(const Link& link) {
  const LinkTotals& totals = link.totals();
  CHECK_EQUAL(totals.offered,
              totals.delivered + totals.lost + totals.dropped + totals.swallowed + static_cast<i64>(link.held()));
}

}  // namespace

TEST(link__serves_in_order_at_its_rate) {
  Link link(1, bottleneck(1'000'000'000, 5 * kUs, 0));
  for (int i = 0; i < 3; ++i) CHECK(link.offer(1'000'000, packet_of(1'000)));
  CHECK_EQUAL(link.queue_bytes(1'000'000), 3'000);
  CHECK_EQUAL(link.next_ns(), 1'000'000 + 1'000 + 5'000);
  CHECK_EQUAL(link.queue_bytes(1'001'000), 2'000);
  Packet packet;
  CHECK(!link.poll(1'005'999, &packet));
  CHECK(link.poll(1'006'000, &packet));
  CHECK(!link.poll(1'006'000, &packet));
  CHECK_EQUAL(link.next_ns(), 1'007'000);
  check_conserved(link);
}

TEST(link__no_byte_is_lost_to_rounding) {
  Link link(1, bottleneck(12'500'000'000, 0, 0));  // 4096 bytes take 327.68 ns
  for (int i = 0; i < 10'000; ++i) CHECK(link.offer(0, packet_of(4096)));
  Packet packet;
  CHECK_EQUAL(link.queue_bytes(3'276'800 - 1), 4096);
  CHECK_EQUAL(link.queue_bytes(3'276'800), 0);
}

TEST(link__a_full_queue_drops_and_an_empty_one_never) {
  Link link(1, bottleneck(1'000'000'000, 0, 2'500));
  CHECK(link.offer(0, packet_of(1'000)));
  CHECK(link.offer(0, packet_of(1'000)));
  CHECK(!link.offer(0, packet_of(1'000)));
  CHECK(link.offer(0, packet_of(500)));
  CHECK(link.offer(2'500, packet_of(9'000)));
  CHECK_EQUAL(link.totals().dropped, 1);
  check_conserved(link);
}

TEST(link__marks_by_step_and_in_proportion) {
  LinkConfig config = bottleneck(1'000'000'000, 0, 0);
  config.mark_from_bytes = config.mark_full_bytes = 10'000;
  Link step(1, config);
  for (int i = 0; i < 30; ++i) CHECK(step.offer(0, packet_of(1'000)));
  CHECK_EQUAL(step.totals().marked, 20);  // packets that arrived at a queue of 10,000 bytes or more

  config.mark_full_bytes = 110'000;
  Link linear(1, config);
  for (int i = 0; i < 110; ++i) CHECK(linear.offer(0, packet_of(1'000)));
  CHECK(linear.totals().marked > 35 && linear.totals().marked < 65);  // 50 are expected
  for (int i = 0; i < 10; ++i) CHECK(linear.offer(0, packet_of(1'000)));
  CHECK(linear.totals().marked > 45);
}

TEST(link__loses_its_share_and_accounts_for_it) {
  LinkConfig config = bottleneck(0, 1 * kUs, 0);
  config.loss = 0.25;
  Link link(7, config);
  Packet packet;
  int received = 0;
  for (int i = 0; i < 10'000; ++i) CHECK(link.offer(i, packet_of(100)));
  while (link.poll(1 * kMs, &packet)) received += packet.lost ? 0 : 1;
  CHECK(received > 7'300 && received < 7'700);
  CHECK_EQUAL(link.totals().delivered, received);
  CHECK_EQUAL(link.held(), 0u);
  check_conserved(link);
}

TEST(link__jitter_reorders_and_comes_in_time_order) {
  LinkConfig config = bottleneck(1'000'000'000, 5 * kUs, 0);
  config.jitter_ns = 10 * kUs;
  Link link(3, config);
  for (u32 i = 0; i < 500; ++i) {
    Packet packet = packet_of(1'000);
    packet.from = i;
    CHECK(link.offer(0, packet));
  }
  Packet packet;
  i64 now_ns = 0, last_ns = 0, inversions = 0;
  u32 last = 0, count = 0;
  while (link.next_ns() != weft::core::kNever) {
    now_ns = link.next_ns();
    CHECK(now_ns >= last_ns);
    last_ns = now_ns;
    while (link.poll(now_ns, &packet)) {
      inversions += packet.from < last ? 1 : 0;
      last = packet.from;
      ++count;
      // A packet arrives no earlier than without jitter, and later by the jitter at most.
      const i64 undisturbed_ns = (i64{packet.from} + 1) * 1'000 + 5 * kUs;
      CHECK(now_ns >= undisturbed_ns && now_ns < undisturbed_ns + 10 * kUs);
    }
  }
  CHECK_EQUAL(count, 500u);
  CHECK(inversions > 50);
}

TEST(link__a_new_rate_holds_for_what_waits) {
  Link link(1, bottleneck(1'000'000'000, 0, 0));
  for (int i = 0; i < 4; ++i) CHECK(link.offer(0, packet_of(1'000)));
  link.set_rate(500, 500'000'000);  // at a time when half of the first packet has been sent
  CHECK_EQUAL(link.queue_bytes(1'499), 4'000);
  Packet packet;
  i64 last_ns = 0;
  int count = 0;
  while (link.next_ns() != weft::core::kNever) {
    last_ns = link.next_ns();
    while (link.poll(last_ns, &packet)) ++count;
  }
  CHECK_EQUAL(count, 4);
  CHECK(last_ns >= 7'500 && last_ns <= 7'510);
}

TEST(link__down_swallows_and_up_carries_again) {
  Link link(1, bottleneck(1'000'000'000, 0, 0));
  link.set_up(false);
  CHECK(!link.offer(0, packet_of(1'000)));
  link.set_up(true);
  CHECK(link.offer(0, packet_of(1'000)));
  CHECK_EQUAL(link.totals().swallowed, 1);
  check_conserved(link);
}

TEST(histogram__percentiles_are_within_a_sixteenth) {
  Histogram histogram;
  CHECK_EQUAL(histogram.percentile(0.5), 0);
  for (i64 value = 1; value <= 100'000; ++value) histogram.add(value);
  for (const double share : {0.01, 0.5, 0.99, 1.0}) {
    const auto exact = static_cast<i64>(share * 100'000);
    CHECK(histogram.percentile(share) >= exact);
    CHECK(histogram.percentile(share) <= exact + exact / 16 + 1);
  }
}

TEST(wire_ledger__counts_what_no_acknowledgment_has_named) {
  WireLedger ledger;
  for (u64 seq = 0; seq < 70; ++seq) CHECK(ledger.on_sent(seq, 100) == WireLedger::Sent::first);
  CHECK_EQUAL(ledger.unacked_bytes(), 7'000);
  u8 bitmap[8] = {0b101, 0, 0, 0, 0, 0, 0, 0};
  weft::wire::Ack ack;
  ack.cumulative_seq = 10;
  ack.base_seq = 11;
  ack.bitmap_words = 1;
  ack.bitmap = bitmap;
  CHECK(ledger.on_ack(ack));
  CHECK_EQUAL(ledger.unacked_bytes(), 5'800);  // all but segments 0 to 9, 11 and 13
  CHECK(ledger.on_ack(ack));
  CHECK_EQUAL(ledger.unacked_bytes(), 5'800);
  CHECK(ledger.on_sent(12, 100) == WireLedger::Sent::copy);
  CHECK(ledger.on_sent(12, 100) == WireLedger::Sent::copy);
  CHECK(ledger.on_sent(13, 100) == WireLedger::Sent::needless);
  CHECK(ledger.on_sent(5, 100) == WireLedger::Sent::needless);
  CHECK(ledger.on_sent(71, 100) == WireLedger::Sent::foreign);
  CHECK_EQUAL(ledger.copies(), 4);
  CHECK_EQUAL(ledger.copies_max(), 2);
  ack.cumulative_seq = 71;
  CHECK(!ledger.on_ack(ack));
}

TEST(arena__a_flow_alone_fills_its_link) {
  const ArenaReport report = run_arena(plan_of(1, 1));
  CHECK_EQUAL(report.violation, "");
  const double share = report.goodput_bytes_per_s / 1'250'000'000;
  CHECK(share > 0.97 && share < 4096.0 / 4160.0 + 0.001);  // headers use the rest of the link
  CHECK(report.flows[0].message_ns_p99 >= report.flows[0].message_ns_p50);
  CHECK(report.flows[0].messages > 40);
}

TEST(arena__several_paths_carry_their_sum) {
  ArenaPlan plan = plan_of(1, 4);
  plan.window_bytes_max = 2 << 20;
  const ArenaReport report = run_arena(plan);
  CHECK_EQUAL(report.violation, "");
  CHECK(report.goodput_bytes_per_s > 0.95 * 4 * 1'250'000'000);
}

TEST(arena__the_same_plan_is_the_same_run) {
  ArenaPlan plan = plan_of(3, 2);
  for (LinkConfig& path : plan.paths) path.loss = 0.01;
  plan.trace_ns = 1 * kMs;
  const ArenaReport one = run_arena(plan);
  const ArenaReport two = run_arena(plan);
  CHECK_EQUAL(one.fingerprint, two.fingerprint);
  CHECK(one.trace.window_bytes == two.trace.window_bytes);
  plan.seed = 2;
  CHECK(run_arena(plan).fingerprint != one.fingerprint);
}

TEST(arena__conserves_datagrams_and_gives_every_header_back) {
  ArenaPlan plan = plan_of(2, 2);
  for (LinkConfig& path : plan.paths) {
    path.loss = 0.02;
    path.queue_bytes_max = 100'000;
    path.jitter_ns = 30 * kUs;
  }
  plan.ack_loss = 0.02;
  for (FlowPlan& flow : plan.flows) flow.messages = 20;
  plan.limit_ns = 10'000 * kMs;
  Arena arena(plan);
  while (arena.step()) {
  }
  const ArenaReport report = arena.report();
  CHECK_EQUAL(report.violation, "");
  std::size_t held = 0;
  for (u32 path = 0; path < 2; ++path) {
    check_conserved(arena.path(path));
    held += arena.path(path).held();
  }
  for (const FlowReport& flow : report.flows) {
    CHECK_EQUAL(flow.messages, 20);
    CHECK_EQUAL(flow.delivered_bytes, 20 << 20);
    CHECK(flow.finished_ns > 0);
    CHECK(flow.sent.segments_resent > 0);
  }
  CHECK(arena.headers_in_use() >= held);
  CHECK(arena.headers_in_use() < held + 200);  // most headers were returned; the others are in flight
}

// Tests only the links: how traffic behaves in an outage depends on the loss policy, which the conformance suite tests.
TEST(arena__an_outage_swallows_both_ways_and_ends) {
  ArenaPlan plan = plan_of(1, 2);
  plan.limit_ns = 400 * kMs;
  plan.changes.push_back({.at_ns = 20 * kMs, .path = 1, .up = 0});
  plan.changes.push_back({.at_ns = 120 * kMs, .path = 1, .up = 1});
  plan.trace_ns = 20 * kMs;
  Arena arena(plan);
  while (arena.now_ns() < 110 * kMs) CHECK(arena.step());
  const LinkTotals during = arena.path(1).totals();
  CHECK(during.swallowed > 0 && during.swallowed < 2'000);
  while (arena.step()) {
  }
  const ArenaReport report = arena.report();
  CHECK_EQUAL(report.violation, "");
  CHECK(report.paths[1].forward.delivered > during.delivered + 10'000);
  const std::vector<i64>& delivered = report.trace.delivered_bytes;
  const double both = static_cast<double>(delivered[19] - delivered[17]) / (0.040 * 1'250'000'000);
  CHECK(both > 1.9);
}

TEST(arena__a_rate_that_changes_is_followed) {
  ArenaPlan plan = plan_of(1, 1);
  plan.changes.push_back({.at_ns = 20 * kMs, .path = 0, .bytes_per_s = 312'500'000});
  plan.rto_ns_min = 20 * kMs;  // long, because a full queue takes 1.7 ms to drain
  plan.measure_from_ns = 30 * kMs;
  const ArenaReport report = run_arena(plan);
  CHECK(report.goodput_bytes_per_s > 0.97 * 312'500'000 && report.goodput_bytes_per_s < 312'500'000);
}

TEST(arena__ports_of_hosts_limit_too) {
  ArenaPlan plan = plan_of(4, 4);
  for (FlowPlan& flow : plan.flows) flow.to = 4;
  plan.receiver_port = bottleneck(625'000'000, 1 * kUs, 4 << 20);
  const ArenaReport report = run_arena(plan);
  CHECK_EQUAL(report.violation, "");
  CHECK(report.goodput_bytes_per_s > 0.9 * 625'000'000 && report.goodput_bytes_per_s < 625'000'000);
  plan = plan_of(1, 1);
  plan.sender_port = bottleneck(125'000'000, 0, 0);
  CHECK(run_arena(plan).goodput_bytes_per_s < 125'000'000);
}

TEST(arena__a_flow_that_stops_leaves_the_link_to_the_other) {
  ArenaPlan plan = plan_of(2, 1);
  plan.flows[0].stop_ns = 20 * kMs;
  plan.flows[0].message_bytes = u64{1} << 40;
  plan.measure_from_ns = 25 * kMs;
  const ArenaReport report = run_arena(plan);
  CHECK_EQUAL(report.violation, "");
  CHECK_EQUAL(report.flows[0].goodput_bytes_per_s, 0.0);
  CHECK(report.flows[1].goodput_bytes_per_s > 0.95 * 1'250'000'000);
}

TEST(arena__plans_that_make_no_sense_are_told_so) {
  CHECK_EQUAL(Arena::complaint(plan_of(2, 2)), "");
  ArenaPlan plan = plan_of(1, 1);
  plan.flows[0].to = 0;
  CHECK(!Arena::complaint(plan).empty());
  plan = plan_of(1, 1);
  plan.paths[0].loss = 2;
  CHECK(!Arena::complaint(plan).empty());
  plan = plan_of(1, 1);
  plan.changes.push_back({.at_ns = 0, .path = 9});
  CHECK(!Arena::complaint(plan).empty());
}
