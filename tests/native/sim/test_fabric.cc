// Tests a fabric of a few hosts: queues with two priorities, ECN marks, trimming, PFC and failures of single ports;
// routes; and whole runs, whose result must not depend on the number of threads.
#include <algorithm>
#include <limits>
#include <vector>

#include "native/policy/loader.h"
#include "native/sim/fabric/fabric.h"
#include "tests/native/check.h"

namespace weft::sim {
namespace {

constexpr i64 kRate = 12'500'000'000;  // 80 ps per byte

struct Sink final : FabricSink {
  std::vector<FabricPacket*> arrived, lost;
  void arrive(FabricPacket* packet, u32, u32) override { arrived.push_back(packet); }
  void lose(FabricPacket* packet) override { lost.push_back(packet); }
  void look(u32, u32, i64) override {}
  void leave(const FabricPacket&, u32, i64) override {}
};

struct PortBench {
  explicit PortBench(bool trim, i64 queue_bytes = 10'000) {
    rules = {trim, true, 1000, 0};
    PortPlan plan;
    plan.from = 2;
    plan.to = 0;
    plan.bytes_per_s = kRate;
    plan.delay_ns = 1000;
    plan.queue_bytes_max = queue_bytes;
    plan.mark_from_bytes = 3000;
    plan.mark_full_bytes = 3000;
    port.open(plan, 0, 1, &rules);
  }
  FabricPacket* packet(u32 payload_bytes, bool data = true) {
    FabricPacket* made = pool.take();
    const u8 header[64] = {};
    pool.set_header(made, header, 64);
    made->payload_bytes = payload_bytes;
    made->data = data;
    made->first = !data;
    made->marked = made->trimmed = false;
    return made;
  }
  FabricRules rules;
  FabricPort port;
  FabricPacketPool pool;
  Sink sink;
};

TEST(port__serves_first_come_first_and_control_before_data) {
  PortBench bench(false);
  FabricPacket* first = bench.packet(936);
  FabricPacket* second = bench.packet(936);
  FabricPacket* control = bench.packet(0, false);
  bench.port.offer(0, first, &bench.sink);
  bench.port.offer(10, second, &bench.sink);
  bench.port.offer(20, control, &bench.sink);
  CHECK_EQUAL(bench.sink.arrived.size(), 1u);  // the other packets wait
  bench.port.advance(1'000'000, &bench.sink);
  CHECK(bench.sink.arrived == std::vector<FabricPacket*>({first, control, second}));
  CHECK_EQUAL(first->due_ps, 80'000 + 1'000'000);
  CHECK_EQUAL(control->due_ps, 80'000 + 64 * 80 + 1'000'000);
  CHECK_EQUAL(second->due_ps, 160'000 + 64 * 80 + 1'000'000);
  CHECK(!bench.port.waits());
}

// What two ports on the way stamp: the queue behind the packet, what the port sent before it, and when it began to
// send.
TEST(port__stamps_queue_bytes_and_time_of_departure) {
  PortBench one(false, 100'000), other(false, 100'000);
  one.port.set_stamps();
  other.port.set_stamps();
  std::vector<FabricPacket*> sent;
  for (int i = 0; i < 3; ++i) {
    sent.push_back(one.packet(936));
    sent.back()->hops = one.pool.take_hops();
    one.port.offer(0, sent.back(), &one.sink);
  }
  one.port.offer(0, one.packet(0, false), &one.sink);  // 64 bytes that go before the second and third packet
  one.port.advance(1'000'000, &one.sink);
  for (FabricPacket* packet : one.sink.arrived) other.port.offer(packet->due_ps, packet, &other.sink);
  other.port.advance(10'000'000, &other.sink);
  const i64 queues[] = {2064, 1000, 0}, tx[] = {0, 1064, 2064}, begun_ps[] = {0, 85'120, 165'120};
  for (std::size_t i = 0; i < 3; ++i) {
    const wire::HopRecords& records = *sent[i]->hops;
    CHECK_EQUAL(records.count, 2u);
    CHECK_EQUAL(records.hops[0].queue_bytes, i == 0 ? 0 : queues[i]);  // the others arrive when the first has begun
    CHECK_EQUAL(records.hops[0].tx_bytes, tx[i]);
    CHECK_EQUAL(records.hops[0].timestamp_ns, kFabricBeginNs + begun_ps[i] / 1000);
    CHECK_EQUAL(records.hops[0].link_bytes_per_s, kRate);
    CHECK_EQUAL(records.hops[1].queue_bytes, 0);  // the second port is as fast as the first
    CHECK_EQUAL(records.hops[1].tx_bytes, tx[i]);
    CHECK_EQUAL(records.hops[1].timestamp_ns, kFabricBeginNs + (begun_ps[i] + 1'080'000) / 1000);
  }
  for (FabricPacket* packet : sent) one.pool.give(packet);
  CHECK(one.pool.take()->hops == nullptr);
}

TEST(port__stamps_no_control_packet_no_ninth_hop_and_nothing_unasked) {
  PortBench bench(false, 100'000);
  FabricPacket* data = bench.packet(936);
  data->hops = bench.pool.take_hops();
  bench.port.offer(0, data, &bench.sink);
  bench.port.advance(1'000'000, &bench.sink);
  CHECK_EQUAL(data->hops->count, 0u);
  bench.port.set_stamps();
  for (i64 hop = 1; hop <= 9; ++hop) bench.port.offer(hop * 1'000'000, data, &bench.sink);
  CHECK_EQUAL(data->hops->count, wire::HopRecords::kMax);
  CHECK_EQUAL(data->hops->hops[7].tx_bytes, 8000);
  FabricPacket* control = bench.packet(0, false);
  control->hops = bench.pool.take_hops();
  bench.port.offer(20'000'000, control, &bench.sink);
  CHECK_EQUAL(control->hops->count, 0u);
}

// Departure times do not depend on how often, and up to which times, a port's state is brought up to date.
TEST(port__settling_more_often_changes_nothing) {
  std::vector<i64> due[2];
  for (const int often : {0, 1}) {
    PortBench bench(false);
    for (i64 at = 0; at < 20; ++at) {
      bench.port.offer(at * 50'000, bench.packet(936, at % 5 != 0), &bench.sink);
      for (i64 step = 0; often != 0 && step < 50'000; step += 7'000)
        bench.port.advance(at * 50'000 + step, &bench.sink);
    }
    bench.port.advance(100'000'000, &bench.sink);
    for (const FabricPacket* packet : bench.sink.arrived) due[often].push_back(packet->due_ps);
  }
  CHECK(due[0] == due[1]);
  CHECK_EQUAL(due[0].size(), 20u);
}

TEST(port__marks_by_what_waits) {
  PortBench bench(false);
  for (int i = 0; i < 5; ++i) bench.port.offer(0, bench.packet(936), &bench.sink);
  bench.port.advance(1'000'000, &bench.sink);
  std::vector<bool> marks;
  for (const FabricPacket* packet : bench.sink.arrived) marks.push_back(packet->marked);
  CHECK(marks == std::vector<bool>({false, true, true, false, false}));
}

TEST(port__drops_what_finds_it_full) {
  PortBench bench(false, 3000);
  for (int i = 0; i < 5; ++i) bench.port.offer(0, bench.packet(936), &bench.sink);
  CHECK_EQUAL(bench.sink.lost.size(), 2u);
  bench.port.advance(1'000'000, &bench.sink);
  CHECK_EQUAL(bench.sink.arrived.size(), 3u);
  CHECK_EQUAL(bench.port.report().dropped, 2);
}

TEST(port__trims_instead_and_headers_overtake) {
  PortBench bench(true, 3000);
  for (int i = 0; i < 5; ++i) bench.port.offer(0, bench.packet(936), &bench.sink);
  bench.port.advance(1'000'000, &bench.sink);
  CHECK_EQUAL(bench.sink.lost.size(), 0u);
  CHECK_EQUAL(bench.port.report().trimmed, 2);
  std::vector<bool> trimmed;
  for (const FabricPacket* packet : bench.sink.arrived) trimmed.push_back(packet->trimmed);
  CHECK(trimmed == std::vector<bool>({false, true, true, false, false}));
  CHECK_EQUAL(bench.port.queue_bytes(1'000'000), 0);
}

TEST(port__that_goes_down_loses_what_waits_and_carries_again) {
  PortBench bench(false);
  for (int i = 0; i < 3; ++i) bench.port.offer(0, bench.packet(936), &bench.sink);
  PortChange change;
  change.up = 0;
  bench.port.apply(100, change, &bench.sink);
  CHECK_EQUAL(bench.sink.lost.size(), 2u);
  bench.port.offer(200, bench.packet(936), &bench.sink);
  CHECK_EQUAL(bench.sink.lost.size(), 3u);
  change.up = 1;
  bench.port.apply(500'000, change, &bench.sink);
  bench.port.offer(600'000, bench.packet(936), &bench.sink);
  CHECK_EQUAL(bench.sink.arrived.size(), 2u);
  CHECK_EQUAL(bench.sink.arrived.back()->due_ps, 600'000 + 80'000 + 1'000'000);
}

TEST(port__that_is_paused_waits) {
  PortBench bench(false);
  bench.port.pause(0, true, &bench.sink);
  bench.port.offer(100, bench.packet(936), &bench.sink);
  bench.port.advance(1'000'000, &bench.sink);
  CHECK_EQUAL(bench.sink.arrived.size(), 0u);
  bench.port.pause(2'000'000, false, &bench.sink);
  bench.port.advance(2'000'000, &bench.sink);
  CHECK_EQUAL(bench.sink.arrived.size(), 1u);
  CHECK_EQUAL(bench.sink.arrived[0]->due_ps, 2'000'000 + 80'000 + 1'000'000);
}

// Two leaves with two hosts each, and two spines.
struct Nodes {
  static constexpr u32 kHosts = 4, kLeaves = 2, kSpines = 2;
  FabricPlan plan;

  explicit Nodes(i64 queue_bytes = 100'000) {
    plan.hosts = kHosts;
    plan.switches = kLeaves + kSpines;
    plan.groups = kLeaves;
    for (u32 host = 0; host < kHosts; ++host) add(host, kHosts + host / 2, 1 << 20);
    for (u32 leaf = 0; leaf < kLeaves; ++leaf) {
      for (u32 i = 0; i < 2; ++i) add(kHosts + leaf, 2 * leaf + i, queue_bytes);
      for (u32 spine = 0; spine < kSpines; ++spine) add(kHosts + leaf, kHosts + kLeaves + spine, queue_bytes);
    }
    for (u32 spine = 0; spine < kSpines; ++spine) {
      for (u32 leaf = 0; leaf < kLeaves; ++leaf) add(kHosts + kLeaves + spine, kHosts + leaf, queue_bytes);
    }
    plan.group_of = {0, 0, 1, 1};
    plan.route.assign(plan.switches * plan.groups, -1);
    plan.set_begin = {0};
    for (u32 node = 0; node < plan.switches; ++node) {
      for (u32 group = 0; group < kLeaves; ++group) {
        if (node == group) continue;
        for (u32 port = 0; port < plan.ports.size(); ++port) {
          const PortPlan& at = plan.ports[port];
          const bool up = node < kLeaves && at.to >= kHosts + kLeaves;
          const bool down = node >= kLeaves && at.to == kHosts + group;
          if (at.from == kHosts + node && (up || down)) plan.set_ports.push_back(port);
        }
        plan.route[node * kLeaves + group] = static_cast<i32>(plan.set_begin.size() - 1);
        plan.set_begin.push_back(static_cast<u32>(plan.set_ports.size()));
      }
    }
    plan.paths = 8;
    plan.rtt_ns = 9'000;
    plan.check = true;
    plan.limit_ns = 500'000'000;
  }
  void add(u32 from, u32 to, i64 queue_bytes) {
    PortPlan port;
    port.from = from;
    port.to = to;
    port.bytes_per_s = kRate;
    port.delay_ns = 1000;
    port.queue_bytes_max = queue_bytes;
    port.mark_from_bytes = queue_bytes / 5;
    port.mark_full_bytes = queue_bytes * 4 / 5;
    plan.ports.push_back(port);
  }
  void all_to_all(u64 bytes) {
    for (u32 from = 0; from < kHosts; ++from) {
      for (u32 to = 0; to < kHosts; ++to) {
        if (from != to) plan.transfers.push_back({from, to, bytes, 0, 0, 0});
      }
    }
  }
};

struct Outcome {
  FabricTotals totals;
  std::string violation;
  std::vector<TransferReport> transfers;
  std::vector<PortReport> ports;
};

Outcome run(const FabricPlan& plan) {
  CHECK_EQUAL(complaint(plan), std::string());
  Fabric fabric(plan);
  while (fabric.run(1000)) {
  }
  return {fabric.totals(), fabric.violation(), fabric.transfers(), fabric.ports()};
}

TEST(fabric__carries_everything) {
  for (const bool ready : {true, false}) {
    Nodes nodes;
    nodes.all_to_all(300'000);
    nodes.plan.transfers.push_back({0, 3, 0, 50'000, 1, 0});  // an empty transfer, later, on another stream
    nodes.plan.receives_ready = ready;
    const Outcome outcome = run(nodes.plan);
    CHECK_EQUAL(outcome.violation, std::string());
    CHECK(outcome.totals.finished);
    CHECK_EQUAL(outcome.totals.transfers_done, 13);
    CHECK(outcome.transfers[12].received_ns >= 50'000);
  }
}

TEST(fabric__is_the_same_for_any_number_of_threads) {
  for (const bool trim : {false, true}) {
    Outcome first;
    for (const u32 threads : {1u, 2u, 3u, 1u}) {
      Nodes nodes(30'000);
      nodes.all_to_all(400'000);
      nodes.plan.trim = trim;
      nodes.plan.threads = threads;
      nodes.plan.host_jitter_ns = 500;
      nodes.plan.ports[9].loss = 0.02;
      nodes.plan.changes = {{20'000, 12, 0, -1, -1}, {400'000, 12, 1, -1, -1}};
      const Outcome outcome = run(nodes.plan);
      CHECK_EQUAL(outcome.violation, std::string());
      CHECK(outcome.totals.finished);
      if (first.transfers.empty()) first = outcome;
      CHECK_EQUAL(outcome.totals.fingerprint, first.totals.fingerprint);
      CHECK_EQUAL(outcome.totals.packet_hops, first.totals.packet_hops);
    }
  }
}

TEST(fabric__connections_of_two_policy_sets_share_a_host) {
  core::u64 first = 0;
  for (const u32 threads : {1u, 2u}) {
    Nodes nodes(60'000);
    for (const u32 stream : {0u, 1u}) {
      for (u32 from = 0; from < Nodes::kHosts; ++from) {
        nodes.plan.transfers.push_back({from, (from + 1) % Nodes::kHosts, 400'000, 0, stream, 0});
        nodes.plan.policy_set_of.push_back(static_cast<core::u16>(stream));
      }
    }
    // The path policy is named, so these connections have paths of their own.
    nodes.plan.policy_sets.push_back({{}, {&policy::fixed(policy::Family::path), nullptr}, {}, {}});
    nodes.plan.threads = threads;
    CHECK_EQUAL(complaint(nodes.plan), std::string());
    Fabric fabric(nodes.plan);
    while (fabric.run(1000)) {
    }
    CHECK_EQUAL(fabric.violation(), std::string());
    CHECK_EQUAL(fabric.totals().transfers_done, 8);
    CHECK_EQUAL(fabric.host(0).stack().peer_count(), 4u);  // two neighbours, and two path policies
    if (threads == 1) first = fabric.totals().fingerprint;
    CHECK_EQUAL(fabric.totals().fingerprint, first);
  }
}

TEST(fabric__under_pfc_loses_nothing_for_want_of_room) {
  for (const u32 threads : {1u, 2u}) {
    Nodes nodes(400'000);
    for (u32 from = 1; from < Nodes::kHosts; ++from) nodes.plan.transfers.push_back({from, 0, 4'000'000, 0, 0, 0});
    nodes.plan.pause_bytes = 60'000;
    nodes.plan.resume_bytes = 30'000;
    nodes.plan.threads = threads;
    const Outcome outcome = run(nodes.plan);
    i64 dropped = 0, pauses = 0;
    for (const PortReport& port : outcome.ports) {
      dropped += port.dropped;
      pauses += port.pauses;
    }
    CHECK(outcome.totals.finished);
    CHECK_EQUAL(dropped, 0);
    CHECK(pauses > 0);
  }
}

// A pause and its end fall on the same instant, on links with delays so much longer than a time window that both are
// scheduled far ahead.
TEST(fabric__under_pfc_is_the_same_for_any_number_of_threads) {
  u64 fingerprint = 0;
  for (const u32 threads : {1u, 2u, 3u, 4u}) {
    Nodes nodes(2'000'000);
    for (PortPlan& port : nodes.plan.ports) {
      port.delay_ns = port.from < Nodes::kHosts || port.to < Nodes::kHosts ? 100 : 10'000;
      port.mark_from_bytes = port.mark_full_bytes = 0;
    }
    for (u32 from = 1; from < Nodes::kHosts; ++from) nodes.plan.transfers.push_back({from, 0, 500'000, 0, 0, 0});
    nodes.plan.pause_bytes = 4200;
    nodes.plan.resume_bytes = 4199;
    nodes.plan.threads = threads;
    const Outcome outcome = run(nodes.plan);
    CHECK(outcome.totals.finished);
    if (fingerprint == 0) fingerprint = outcome.totals.fingerprint;
    CHECK_EQUAL(outcome.totals.fingerprint, fingerprint);
  }
}

TEST(fabric__starts_what_waited_when_it_may) {
  Nodes nodes;
  nodes.plan.transfers = {{0, 2, 100'000, 0, 0, 0}, {2, 1, 100'000, 0, 0, 0}, {0, 3, 1000, 0, 0, 0}};
  nodes.plan.dependencies = {{0, 1, 5'000}, {0, 2, 0}};
  const Outcome outcome = run(nodes.plan);
  CHECK_EQUAL(outcome.transfers[1].ready_ns, outcome.transfers[0].received_ns + 5'000);
  CHECK_EQUAL(outcome.transfers[2].ready_ns, outcome.transfers[0].sent_ns);
}

TEST(fabric__reordered_packets_arrive_and_runs_are_equal) {
  u64 fingerprint = 0;
  for (const u32 threads : {1u, 3u}) {
    Nodes nodes;
    nodes.all_to_all(400'000);
    nodes.plan.threads = threads;
    for (PortPlan& port : nodes.plan.ports) {
      port.reorder = 0.2;
      port.reorder_ns_max = 20'000;
    }
    const Outcome outcome = run(nodes.plan);
    CHECK_EQUAL(outcome.violation, std::string());
    CHECK(outcome.totals.finished);
    if (fingerprint == 0) fingerprint = outcome.totals.fingerprint;
    CHECK_EQUAL(outcome.totals.fingerprint, fingerprint);
  }
}

TEST(fabric__samples_and_records_without_a_change_of_the_run) {
  FabricTotals totals[2];
  for (const u32 records : {0u, 1u}) {
    Nodes nodes;
    nodes.plan.transfers = {{0, 2, 2'000'000, 0, 0, 0}, {0, 2, 2'000'000, 0, 0, 0}, {1, 2, 2'000'000, 0, 0, 0}};
    nodes.plan.ahead = 1;
    nodes.plan.ports[9].loss = 0.01;
    if (records != 0) {
      nodes.plan.recording_bytes_max = 1 << 24;
      nodes.plan.sample_ns = 50'000;
      nodes.plan.sample_streams = {0};
      nodes.plan.sample_ports = {0, 1};
    }
    Fabric fabric(nodes.plan);
    while (fabric.run(1000)) {
    }
    CHECK_EQUAL(fabric.violation(), std::string());
    totals[records] = fabric.totals();
    // With one message posted at a time, the second is posted when the first is acknowledged.
    const std::vector<TransferReport>& transfers = fabric.transfers();
    CHECK_EQUAL(transfers[0].posted_ns, 0);
    CHECK_EQUAL(transfers[1].ready_ns, 0);
    CHECK_EQUAL(transfers[1].posted_ns, transfers[0].sent_ns);
    i64 copies = 0;
    for (const i64 most : fabric.copies_max()) copies = std::max(copies, most);
    CHECK(copies >= 1);
    CHECK_EQUAL(fabric.recording().empty(), records == 0);
    if (records == 0) continue;
    const FabricSamples& samples = fabric.samples();
    CHECK(samples.at_ns.size() > 4);
    CHECK_EQUAL(samples.port_bytes.size(), 2 * samples.at_ns.size());
    CHECK_EQUAL(samples.received_bytes.size(), samples.at_ns.size());
    CHECK_EQUAL(samples.pacing_bytes_per_s.size(), samples.at_ns.size());
    for (std::size_t i = 1; i < samples.at_ns.size(); ++i) {
      CHECK(samples.received_bytes[i] >= samples.received_bytes[i - 1]);
      CHECK(samples.received_bytes[i] >= samples.sent_bytes[i]);
      CHECK(samples.port_bytes[2 * i] >= samples.received_bytes[i]);  // headers and copies come on top
    }
    CHECK(samples.received_bytes.back() <= 4'000'000);
  }
  CHECK_EQUAL(totals[0].fingerprint, totals[1].fingerprint);
}

// Samples keep every round at one window; without them hosts and spines handle two windows at a time.
TEST(fabric__is_the_same_for_one_and_two_windows_at_a_time) {
  for (const bool pfc : {false, true}) {
    Outcome found[2];
    for (const bool sampled : {false, true}) {
      Nodes nodes(30'000);
      nodes.all_to_all(400'000);
      nodes.plan.trim = !pfc;
      nodes.plan.pause_bytes = pfc ? 9'000 : 0;
      nodes.plan.resume_bytes = pfc ? 5'000 : 0;
      nodes.plan.changes = {{20'000, 12, 0, -1, -1}, {400'000, 12, 1, -1, -1}};
      nodes.plan.sample_ns = sampled ? 10'000 : 0;
      found[sampled ? 1 : 0] = run(nodes.plan);
    }
    CHECK_EQUAL(found[0].violation, std::string());
    CHECK_EQUAL(found[0].totals.fingerprint, found[1].totals.fingerprint);
    CHECK_EQUAL(found[0].totals.packet_hops, found[1].totals.packet_hops);
    CHECK_EQUAL(found[0].totals.ended_ns, found[1].totals.ended_ns);
  }
}

TEST(fabric__ends_at_its_limit) {
  Nodes nodes;
  nodes.all_to_all(100'000);
  nodes.plan.limit_ns = 10'000;
  const Outcome outcome = run(nodes.plan);
  CHECK(!outcome.totals.finished);
  CHECK(outcome.totals.ended_ns <= 10'000);
}

TEST(plan__that_makes_no_sense_is_refused) {
  const auto refused = [](auto change) {
    Nodes nodes;
    nodes.all_to_all(1000);
    change(nodes.plan);
    return !complaint(nodes.plan).empty();
  };
  CHECK(!refused([](FabricPlan&) {}));
  CHECK(refused([](FabricPlan& plan) { plan.ports[0].bytes_per_s = -1; }));
  CHECK(refused([](FabricPlan& plan) { plan.ports[3].delay_ns = 0; }));
  CHECK(refused([](FabricPlan& plan) { plan.ports[0].to = 1; }));
  CHECK(refused([](FabricPlan& plan) { plan.ports[0].loss = 1.5; }));
  CHECK(refused([](FabricPlan& plan) { std::swap(plan.ports[0], plan.ports[9]); }));
  CHECK(refused([](FabricPlan& plan) { plan.route[0 * 2 + 1] = 77; }));
  CHECK(refused([](FabricPlan& plan) { plan.set_ports[0] = 0; }));
  CHECK(refused([](FabricPlan& plan) { plan.transfers[0].to = 99; }));
  CHECK(refused([](FabricPlan& plan) { plan.transfers[0].to = plan.transfers[0].from; }));
  CHECK(refused([](FabricPlan& plan) { plan.dependencies = {{0, 11, 0}}; }));
  CHECK(refused([](FabricPlan& plan) { plan.dependencies = {{0, 3, 0}, {3, 0, 0}}; }));
  CHECK(refused([](FabricPlan& plan) { plan.changes = {{0, 999, 0, -1, -1}}; }));
  CHECK(refused([](FabricPlan& plan) { plan.pause_bytes = plan.resume_bytes = 1000; }));
  CHECK(refused([](FabricPlan& plan) { plan.buffer_bytes = -1; }));
  CHECK(refused([](FabricPlan& plan) { plan.buffer_bytes = (i64{1} << 40) + 1; }));
  for (const double alpha : {0.0, -1.0, 1025.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK(refused([alpha](FabricPlan& plan) { plan.buffer_alpha = alpha; }));
  CHECK(refused([](FabricPlan& plan) { plan.threads = 0; }));
  CHECK(refused([](FabricPlan& plan) { plan.ports[0].reorder = 1.5; }));
  CHECK(refused([](FabricPlan& plan) { plan.ports[0].reorder_ns_max = -1; }));
  CHECK(refused([](FabricPlan& plan) {
    plan.recording_bytes_max = 1;
    plan.threads = 2;
  }));
  CHECK(refused([](FabricPlan& plan) { plan.sample_ports = {1000}; }));
}

}  // namespace
}  // namespace weft::sim
