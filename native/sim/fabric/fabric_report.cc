// Collects the results of a run while no thread runs. This does not affect the run.
#include <algorithm>
#include <limits>

#include "native/sim/fabric/fabric.h"

namespace weft::sim {

// Adds up the totals in the order of nodes, so that the result does not depend on the number of threads.
FabricTotals Fabric::totals() {
  FabricTotals totals;
  totals.ended_ns = std::min(now_ps_ / 1000, plan_.limit_ns);
  totals.windows = windows_;
  totals.finished = finished_;
  for (const auto& shard : shards_) {
    totals.packet_hops += shard->packet_hops();
    totals.data_packets += shard->shared().data_packets;
    totals.policies_failed += shard->shared().policies_failed;
    totals.transfers_done += shard->shared().received;
    if (shard->checks() != nullptr) totals.violations += shard->checks()->violations();
  }
  if (totals.violations == 0 && !violation_.empty()) totals.violations = 1;
  u64 print = 0xCBF29CE484222325u;
  const auto mix = [&print](u64 value) {
    print = (print ^ value) * 0x100000001B3u;
    print ^= print >> 29;
  };
  for (const auto& host : nodes_.hosts) {
    mix(host->fingerprint());
    totals.storage_bytes += static_cast<i64>(host->stack().storage_bytes());
  }
  for (const PortReport& port : ports()) {
    mix(static_cast<u64>(port.packets) << 32 ^ static_cast<u64>(port.bytes));
    mix(static_cast<u64>(port.marked) << 32 ^ static_cast<u64>(port.trimmed + port.dropped));
  }
  for (const TransferReport& transfer : work_.transfers) {
    mix(static_cast<u64>(transfer.received_ns));
    mix(static_cast<u64>(transfer.sent_ns));
  }
  totals.fingerprint = print;
  for (const StreamReport& stream : streams())
    totals.segments += stream.counters.segments_sent - stream.counters.segments_resent;
  return totals;
}

std::vector<StreamReport> Fabric::streams() {
  std::vector<StreamReport> made;
  made.reserve(work_.connections.size());
  for (const FabricConnection& connection : work_.connections) {
    core::Flow& sender = *nodes_.hosts[connection.from]->stack().flow(connection.at_sender);
    core::Flow& receiver = *nodes_.hosts[connection.to]->stack().flow(connection.at_receiver);
    StreamReport& report = made.emplace_back();
    report.from = connection.from;
    report.to = connection.to;
    merge(sender.counters(), &report.counters);
    merge(receiver.counters(), &report.counters);
  }
  return made;
}

std::vector<i64> Fabric::copies_max() const {
  std::vector<i64> made;
  made.reserve(work_.connections.size());
  for (u32 number = 0; number < work_.connections.size(); ++number) {
    const FabricChecks* checks = shards_[nodes_.shard_of[work_.connections[number].from]]->checks();
    made.push_back(checks == nullptr ? -1 : checks->copies_max(number));
  }
  return made;
}

std::vector<PortReport> Fabric::ports() const {
  std::vector<PortReport> made;
  made.reserve(net_.ports.size());
  for (const FabricPort& port : net_.ports) made.push_back(port.report());
  return made;
}

std::vector<i64> Fabric::buffer_bytes_max() const {
  std::vector<i64> made;
  for (const FabricBuffer& buffer : net_.buffers) made.push_back(buffer.used_bytes_max);
  return made;
}

std::vector<PathTrace> Fabric::traced_paths() const {
  std::vector<PathTrace> made;
  for (const auto& host : nodes_.hosts) {
    if (host->trace() == nullptr) continue;
    made.insert(made.end(), host->trace()->paths().begin(), host->trace()->paths().end());
  }
  return made;
}

std::vector<EventTrace> Fabric::traced_events() const {
  std::vector<EventTrace> made;
  for (const auto& host : nodes_.hosts) {
    if (host->trace() == nullptr) continue;
    made.insert(made.end(), host->trace()->events().begin(), host->trace()->events().end());
  }
  return made;
}

void Fabric::sample(i64 at_ps) {
  samples_.at_ns.push_back(at_ps / 1000);
  for (const u32 port : plan_.sample_ports) {
    samples_.queue_bytes.push_back(net_.ports[port].queue_bytes(at_ps));
    samples_.port_bytes.push_back(net_.ports[port].bytes());
  }
  for (const u32 transfer : plan_.sample_streams) {
    const FabricConnection& connection = work_.connections[work_.connection_of[transfer]];
    core::FlowSender& sender = nodes_.hosts[connection.from]->stack().flow(connection.at_sender)->tx;
    samples_.window_bytes.push_back(sender.window().window_bytes());
    samples_.inflight_bytes.push_back(sender.inflight_bytes());
    const i64 burst_bytes = sender.window().pacer().burst_bytes_max();
    const bool paced = burst_bytes != std::numeric_limits<i64>::max();
    samples_.pacing_bytes_per_s.push_back(paced ? burst_bytes * (1'000'000'000 / core::Pacer::kBurstNs) : 0);
    samples_.sent_bytes.push_back(sender.counters().bytes_sent);
    core::Flow& receiver = *nodes_.hosts[connection.to]->stack().flow(connection.at_receiver);
    samples_.received_bytes.push_back(receiver.rx.counters().bytes_received);
  }
  i64 most = 0, sum = 0;
  for (const FabricPort& port : net_.ports) {
    if (port.from() < plan_.hosts) continue;
    const i64 bytes = port.queue_bytes(at_ps);
    most = std::max(most, bytes);
    sum += bytes;
  }
  samples_.queue_bytes_max.push_back(most);
  samples_.queue_bytes_sum.push_back(sum);
}

// Makes the checks that need the state of all shards.
void Fabric::check_all(FabricChecks* checks) const {
  std::size_t lent = 0, found = 0, blocks_lent = 0, blocks_found = 0;
  const auto look = [&](const FabricPacket& packet) {
    ++found;
    if (packet.block != nullptr) ++blocks_found;
  };
  for (const auto& shard : shards_) {
    lent += shard->packets_in_use();
    blocks_lent += shard->blocks_in_use();
    shard->each_packet(look);
  }
  for (const FabricPort& port : net_.ports) port.each_packet(look);
  checks->on_packets(lent, found, blocks_lent, blocks_found);
  checks->on_transfers();
}

// Runs the final checks, and keeps the violation or failure that came first, which is the same for any number of
// threads.
void Fabric::settle_accounts() {
  FabricMoment violated, failed, policy_failed;
  for (const auto& shard : shards_) {
    if (shard->first_violation() < violated) {
      violated = shard->first_violation();
      violation_ = shard->checks()->violation();
    }
    if (shard->first_policy_failure() < policy_failed) {
      policy_failed = shard->first_policy_failure();
      policy_failure_ = shard->shared().policy_failure;
    }
  }
  for (u32 host = 0; plan_.check && host < plan_.hosts; ++host) {
    FabricChecks* checks = shards_[nodes_.shard_of[host]]->checks();
    checks->on_rest(nodes_.hosts[host]->stack(), host, FabricHost::now_ns_of(now_ps_), finished_);
    if (violation_.empty()) violation_ = checks->violation();
  }
  if (FabricChecks* checks = shards_.front()->checks(); checks != nullptr) {
    check_all(checks);
    if (violation_.empty()) violation_ = checks->violation();
  }
  for (const auto& recorder : recorders_) recorder->finish();
  std::string failure;
  for (const auto& shard : shards_) {
    if (shard->shared().failure.empty() || (!failure.empty() && shard->first_failure() >= failed)) continue;
    failed = shard->first_failure();
    failure = shard->shared().failure;
  }
  if (violation_.empty()) violation_ = failure;
}

}  // namespace weft::sim
