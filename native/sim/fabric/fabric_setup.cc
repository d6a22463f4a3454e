// Opens stacks, peers and flows as a handshake would, and schedules the first events.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <tuple>

#include "native/sim/fabric/fabric.h"

namespace weft::sim {
namespace {

// The longest time window. Samples and the time limit are handled at the end of a window, so they come late by up to
// the length of a window.
constexpr i64 kWindowPsMax = 20'000'000;

u64 token_of(const FabricPlan& plan, u64 kind, u64 number) noexcept {
  return core::Random(plan.seed ^ kind << 40 ^ number * 0x9E3779B97F4A7C15u).next();
}

// For each node, the nodes that a link joins it to.
std::vector<std::vector<u32>> neighbours_of(const FabricPlan& plan) {
  std::vector<std::vector<u32>> neighbours(plan.hosts + plan.switches);
  for (const PortPlan& port : plan.ports) {
    neighbours[port.from].push_back(port.to);
    neighbours[port.to].push_back(port.from);
  }
  return neighbours;
}

// The switches in tiers by the number of links to the nearest host, those without one last.
std::vector<std::vector<u32>> tiers_of(const FabricPlan& plan, const std::vector<std::vector<u32>>& neighbours) {
  std::vector<bool> seen(neighbours.size());
  std::vector<u32> tier(plan.hosts), next;
  std::iota(tier.begin(), tier.end(), 0u);
  std::vector<std::vector<u32>> tiers;
  for (; !tier.empty(); tier.swap(next)) {
    next.clear();
    for (const u32 node : tier) {
      for (const u32 other : neighbours[node]) {
        if (other < plan.hosts || seen[other]) continue;
        seen[other] = true;
        next.push_back(other);
      }
    }
    std::sort(next.begin(), next.end());
    if (!next.empty()) tiers.push_back(next);
  }
  tiers.emplace_back();
  for (u32 node = plan.hosts; node < seen.size(); ++node) {
    if (!seen[node]) tiers.back().push_back(node);
  }
  return tiers;
}

// Assigns to each shard equal parts of the hosts and of each tier of switches, because tiers take turns. Parts are
// contiguous: neighbours in the network usually have close numbers. A switch that has hosts goes where they are.
std::vector<u8> shards_of(const FabricPlan& plan, const std::vector<std::vector<u32>>& neighbours, u32 count) {
  std::vector<u8> shard_of(neighbours.size());
  const auto part = [count](u64 place, u64 of) { return static_cast<u8>(place * count / of); };
  for (u32 host = 0; host < plan.hosts; ++host) shard_of[host] = part(host, plan.hosts);
  for (const std::vector<u32>& tier : tiers_of(plan, neighbours)) {
    for (std::size_t place = 0; place < tier.size(); ++place) {
      u64 hosts = 0, sum = 0;
      for (const u32 other : neighbours[tier[place]]) {
        if (other >= plan.hosts) continue;
        ++hosts;
        sum += other;
      }
      shard_of[tier[place]] = hosts == 0 ? part(place, tier.size()) : part(sum / hosts, plan.hosts);
    }
  }
  return shard_of;
}

// Colors the nodes so that links join nodes of different colors and all hosts have color 0. Leaves all at color 0 and
// returns false if this is impossible.
bool color(const FabricPlan& plan, const std::vector<std::vector<u32>>& neighbours, std::vector<u8>* color_of) {
  constexpr u8 kOpen = 2;
  const auto nodes = static_cast<u32>(neighbours.size());
  color_of->assign(nodes, kOpen);
  bool possible = true;
  std::vector<u32> left;
  for (u32 first = 0; first < nodes; ++first) {
    if ((*color_of)[first] != kOpen) continue;
    (*color_of)[first] = 0;
    left.push_back(first);
    while (!left.empty()) {
      const u32 node = left.back();
      left.pop_back();
      const u8 mine = (*color_of)[node];
      possible = possible && (node >= plan.hosts || mine == 0);
      for (const u32 other : neighbours[node]) {
        possible = possible && (*color_of)[other] != mine;
        if ((*color_of)[other] != kOpen) continue;
        (*color_of)[other] = static_cast<u8>(1 - mine);
        left.push_back(other);
      }
    }
  }
  if (!possible) color_of->assign(nodes, 0);
  return possible;
}

bool same(const core::PolicyChoice& one, const core::PolicyChoice& other) noexcept {
  if (one.descriptor != other.descriptor) return false;
  if (one.params == other.params || one.descriptor == nullptr) return true;
  const auto params_of = [](const core::PolicyChoice& choice) {
    return choice.params != nullptr ? choice.params : choice.descriptor->params_default;
  };
  return std::memcmp(params_of(one), params_of(other), one.descriptor->params_bytes) == 0;
}

i64 lookahead_ps(const FabricPlan& plan) noexcept {
  i64 least_ps = kWindowPsMax;
  for (const PortPlan& port : plan.ports) least_ps = std::min(least_ps, port.delay_ns * 1000);
  return least_ps;
}

}  // namespace

Fabric::Fabric(const FabricPlan& plan) : plan_(plan) {
  rules_ = {plan.trim, plan.priority, plan.header_queue_bytes_max, plan.wire_overhead_bytes};
  net_.open(plan, &rules_);
  work_.open(plan);
  window_ps_ = lookahead_ps(plan);
  const u32 count = std::min(plan.threads, plan.hosts);
  const std::vector<std::vector<u32>> neighbours = neighbours_of(plan);
  nodes_.shard_of = shards_of(plan, neighbours, count);
  // Samples, recordings and the times of PFC frames depend on where the windows of all nodes end.
  nodes_.paired = color(plan, neighbours, &nodes_.color_of) && plan.sample_ns == 0 && plan.recording_bytes_max == 0 &&
                  plan.pause_bytes == 0;
  for (u32 i = 0; i < count; ++i) {
    shards_.push_back(std::make_unique<FabricShard>(i, count, plan, &net_, &work_, &nodes_, window_ps_));
  }
  for (u32 i = 0; i < plan.switches; ++i) nodes_.switches.emplace_back(plan.hosts + i, plan, net_);
  make_hosts();
  if (plan.recording_bytes_max != 0) record_decisions();
  make_connections();
  if (plan.trace_ns != 0) {
    traced_.resize(plan.transfers.size());
    for (const auto& host : nodes_.hosts) host->record(plan, work_, &traced_);
  }
  for (u32 i = 0; i < plan.transfers.size(); ++i) {
    if (work_.waits_for[i] == 0) nodes_.hosts[plan.transfers[i].from]->add_transfer(i, plan.transfers[i].start_ns);
  }
  for (u32 i = 0; i < plan.changes.size(); ++i) {
    const u32 node = plan.ports[plan.changes[i].port].from;
    shards_[nodes_.shard_of[node]]->push({plan.changes[i].at_ns * 1000, node, FabricDue::kChange + i, nullptr});
  }
  for (u32 host = 0; host < plan.hosts; ++host) {
    const u32 first = net_.first_port[host];
    nodes_.hosts[host]->begin(std::span(net_.ports).subspan(first, net_.first_port[host + 1] - first));
    shards_[nodes_.shard_of[host]]->enlist(host);
  }
}

Fabric::~Fabric() = default;

void Fabric::make_hosts() {
  for (u32 host = 0; host < plan_.hosts; ++host) {
    i64 bytes_per_s = 0;
    for (u32 port = net_.first_port[host]; port < net_.first_port[host + 1]; ++port) {
      bytes_per_s += plan_.ports[port].bytes_per_s;
    }
    nodes_.hosts.push_back(std::make_unique<FabricHost>(plan_, bytes_per_s, host));
  }
}

void Fabric::record_decisions() {
  const auto* magic = reinterpret_cast<const std::byte*>(core::kRecordingMagic);
  recording_.assign(magic, magic + sizeof core::kRecordingMagic);
  for (u32 host = 0; host < plan_.hosts; ++host) {
    recorders_.push_back(std::make_unique<core::DecisionBuffer>(&recording_, plan_.recording_bytes_max, host << 24));
    static_cast<void>(nodes_.hosts[host]->stack().trace().subscribe(recorders_.back().get(), core::kTraceDecisions));
  }
}

// The number of the policy set of a connection; 0: the plan's own policies.
u32 Fabric::policy_set_of(const FabricConnection& connection) const noexcept {
  return plan_.policy_set_of.empty() ? 0 : plan_.policy_set_of[work_.order[connection.first]];
}

// For each policy set, the first one with the same path policy.
std::vector<u32> Fabric::first_with_path() const {
  std::vector<core::PolicyChoice> paths = {plan_.path};
  for (const PolicySetPlan& set : plan_.policy_sets) paths.push_back(set.path ? set.path : plan_.path);
  std::vector<u32> first;
  for (const core::PolicyChoice& path : paths) {
    const auto found = std::find_if(paths.begin(), paths.end(), [&](const auto& each) { return same(each, path); });
    first.push_back(static_cast<u32>(found - paths.begin()));
  }
  return first;
}

// The configuration of both flows of a connection, without the ends.
core::FlowConfig Fabric::flow_config(u32 policy_set, u32 number) const noexcept {
  core::FlowConfig config;
  config.local_token = config.remote_token = token_of(plan_, 7, number);
  core::PolicyChoice credit = plan_.credit;
  if (policy_set != 0) {
    const PolicySetPlan& own = plan_.policy_sets[policy_set - 1];
    config.window = own.window;
    config.loss = own.loss;
    config.credit = credit = own.credit;
    config.own_credit = true;
  }
  if (plan_.speculative_bytes >= 0 && credit) config.speculative_bytes = static_cast<u64>(plan_.speculative_bytes);
  return config;
}

void Fabric::open_peer(const FabricConnection& connection, u32 number, u32* at_sender, u32* at_receiver) {
  core::Stack& sender = nodes_.hosts[connection.from]->stack();
  core::Stack& receiver = nodes_.hosts[connection.to]->stack();
  core::PeerConfig config;
  config.path_count = plan_.paths;
  config.segment_bytes = plan_.segment_bytes;
  config.train_bytes_max = std::max<u32>(plan_.burst_bytes_max, plan_.segment_bytes);
  config.port_buffer_bytes = i64{1} << 40;
  config.rtt_ns = plan_.rtt_ns;
  config.rtt_expected_ns = plan_.rtt_expected_ns;
  const auto counters_at = [this](u32 host) { return shards_[nodes_.shard_of[host]]->path_counters(); };
  config.local_token = config.remote_token = token_of(plan_, 6, number);
  if (const u32 own = policy_set_of(connection); own != 0) config.path = plan_.policy_sets[own - 1].path;
  bool ok = sender.reserve_peer(at_sender) == Status::ok && receiver.reserve_peer(at_receiver) == Status::ok;
  config.remote_peer = *at_receiver;
  config.path_counters = counters_at(connection.from);
  ok = ok && sender.open_peer(0, *at_sender, config) == Status::ok;
  config.remote_peer = *at_sender;
  config.path_counters = counters_at(connection.to);
  ok = ok && receiver.open_peer(0, *at_receiver, config) == Status::ok;
  if (!ok) violation_ = "setup: a peer could not be opened";
  nodes_.hosts[connection.from]->add_peer(*at_sender, connection.to);
  nodes_.hosts[connection.to]->add_peer(*at_receiver, connection.from);
}

// Opens all connections. Two hosts share one peer at each end, and so the same paths, for all connections in both
// directions that have the same path policy.
void Fabric::make_connections() {
  // (lower host, higher host, first policy set with this path policy) -> index of the peer in the stack of each
  std::map<std::tuple<u32, u32, u32>, std::pair<u32, u32>> peers;
  const std::vector<u32> first_with = first_with_path();
  const u32 ahead = plan_.ahead;
  for (u32 number = 0; number < work_.connections.size(); ++number) {
    FabricConnection& connection = work_.connections[number];
    const u32 policy_set = policy_set_of(connection);
    const bool upwards = connection.from < connection.to;
    const auto [lower, higher] = std::minmax(connection.from, connection.to);
    const std::tuple ends(lower, higher, first_with[policy_set]);
    auto place = peers.find(ends);
    u32 at_sender = 0, at_receiver = 0;
    if (place == peers.end()) {
      open_peer(connection, number, &at_sender, &at_receiver);
      peers[ends] = upwards ? std::pair(at_sender, at_receiver) : std::pair(at_receiver, at_sender);
    } else {
      at_sender = upwards ? place->second.first : place->second.second;
      at_receiver = upwards ? place->second.second : place->second.first;
    }
    FabricHost& from = *nodes_.hosts[connection.from];
    FabricHost& to = *nodes_.hosts[connection.to];
    bool ok = from.stack().reserve_flow(&connection.at_sender) == Status::ok &&
              to.stack().reserve_flow(&connection.at_receiver) == Status::ok;
    core::FlowConfig config = flow_config(policy_set, number);
    config.peer = at_sender;
    config.remote_flow = connection.at_receiver;
    ok = ok && from.stack().open_flow(FabricHost::kBeginNs, connection.at_sender, config) == Status::ok;
    config.peer = at_receiver;
    config.remote_flow = connection.at_sender;
    ok = ok && to.stack().open_flow(FabricHost::kBeginNs, connection.at_receiver, config) == Status::ok;
    if (!ok) violation_ = "setup: a flow could not be opened";
    from.add_flow(connection.at_sender, number);
    to.add_flow(connection.at_receiver, number);
    work_.receives[number] = std::make_unique<FabricReceive[]>(2 * ahead);
    to.post_receives(&shards_[nodes_.shard_of[connection.to]]->shared(), number, 0);
  }
  over_ = over_ || !violation_.empty();
}

}  // namespace weft::sim
