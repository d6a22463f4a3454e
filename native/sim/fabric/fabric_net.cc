// Routes packets: a switch sends them directly to a host attached to it, and otherwise by the destination's group. If a
// route has several ports, a hash selects one.
#include "native/sim/fabric/fabric_net.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace weft::sim {
namespace {

// A 64-bit hash with a key (from SplitMix64), so that every switch selects ports independently.
u64 mixed(u64 key, u64 value) noexcept { return core::Random(key ^ value * 0x9E3779B97F4A7C15u).next(); }

}  // namespace

// Gives each switch rules of its own, with a buffer.
void FabricNet::share_buffers(const FabricPlan& plan, const FabricRules& rules) {
  if (plan.buffer_bytes == 0) return;
  buffers.assign(plan.switches, {plan.buffer_bytes, plan.buffer_alpha});
  switch_rules_.assign(plan.switches, rules);
  for (u32 i = 0; i < plan.switches; ++i) switch_rules_[i].buffer = &buffers[i];
}

void FabricNet::open(const FabricPlan& plan, const FabricRules* rules) {
  hosts_ = plan.hosts;
  groups_ = plan.groups;
  seed_ = mixed(plan.seed, 0x45434D50);
  ecmp_ = plan.ecmp;
  group_of_ = plan.group_of;
  route_ = plan.route;
  for (const i64 at_ns : plan.route_at_ns) route_at_ps_.push_back(at_ns * 1000);
  set_begin_ = plan.set_begin;
  set_ports_ = plan.set_ports;
  choose(plan.choices);
  share_buffers(plan, *rules);
  const u32 nodes = plan.hosts + plan.switches;
  const auto count = static_cast<u32>(plan.ports.size());
  const bool stamps = reads_hops(plan);
  ports.resize(count);
  first_port.assign(nodes + 1u, 0);
  attached_begin_.assign(hosts_ + 1u, 0);
  for (u32 i = 0; i < count; ++i) {
    const u32 from = plan.ports[i].from;
    const bool shares = from >= hosts_ && !switch_rules_.empty();
    ports[i].open(plan.ports[i], i, mixed(plan.seed, (u64{2} << 40) + i),
                  shares ? &switch_rules_[from - hosts_] : rules);
    if (stamps && from >= hosts_) ports[i].set_stamps();
    ++first_port[plan.ports[i].from + 1u];
    if (plan.ports[i].to < hosts_) {
      ports[i].set_leads_to_host();
      ports[i].add_host(plan.host_delay_ns * 1000, plan.host_jitter_ns * 1000);
      ++attached_begin_[plan.ports[i].to + 1u];
    }
  }
  for (u32 i = 0; i < nodes; ++i) first_port[i + 1u] += first_port[i];
  for (u32 i = 0; i < hosts_; ++i) attached_begin_[i + 1u] += attached_begin_[i];
  attached_.resize(attached_begin_.back());
  std::vector<u32> place(attached_begin_.begin(), attached_begin_.end() - 1);
  for (u32 i = 0; i < count; ++i) {
    if (plan.ports[i].to < hosts_) attached_[place[plan.ports[i].to]++] = {plan.ports[i].from, i};
  }
  if (plan.pause_bytes == 0) return;
  // Maps two nodes to the port that links them; if several links do, the last one is used.
  std::map<std::pair<u32, u32>, u32> by_ends;
  for (u32 i = 0; i < count; ++i) by_ends[{plan.ports[i].from, plan.ports[i].to}] = i;
  opposite.assign(count, core::kNone);
  for (u32 i = 0; i < count; ++i) {
    const auto back = by_ends.find({plan.ports[i].to, plan.ports[i].from});
    if (back != by_ends.end()) opposite[i] = back->second;
  }
}

// Builds choices_ and takes_ from a list in any order. A PathChoice changes one path of a pair of hosts from a time on;
// the other paths of the pair keep the links that they took before.
void FabricNet::choose(const std::vector<PathChoice>& given) {
  constexpr std::size_t paths = core::kMaxPaths;
  const auto ends_of = [](const PathChoice& one) { return u64{one.from} << 32 | one.to; };
  std::vector<PathChoice> sorted = given;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const PathChoice& a, const PathChoice& b) {
    return std::pair(ends_of(a), a.at_ns) < std::pair(ends_of(b), b.at_ns);
  });
  choices_.clear();
  takes_.clear();
  for (const PathChoice& one : sorted) {
    const bool known = !choices_.empty() && choices_.back().ends == ends_of(one);
    if (!known || choices_.back().at_ps != one.at_ns * 1000) {
      choices_.push_back({ends_of(one), one.at_ns * 1000, takes_.size()});
      takes_.resize(takes_.size() + paths);
      const auto row = takes_.end() - paths;
      if (known) {
        std::copy(row - paths, row, row);
      } else {
        std::iota(row, takes_.end(), u8{0});
      }
    }
    takes_[choices_.back().row + one.path] = static_cast<u8>(one.takes);
  }
}

u8 FabricNet::chosen(u32 from, u32 to, u8 path, i64 at_ps) const noexcept {
  const std::pair key(u64{from} << 32 | to, at_ps);
  const auto after = std::upper_bound(choices_.begin(), choices_.end(), key, [](const auto& wanted, const Choice& one) {
    return wanted < std::pair(one.ends, one.at_ps);
  });
  if (after == choices_.begin() || (after - 1)->ends != key.first) return path;
  return takes_[(after - 1)->row + path];
}

u32 FabricNet::hash_of(u32 from, u32 to, u8 path) const noexcept {
  if (ecmp_ == Ecmp::even) return path / (first_port[from + 1] - first_port[from]);  // the port took its digit
  return static_cast<u32>(mixed(seed_ + path, u64{from} << 32 | to) >> 32);
}

std::size_t FabricNet::ports_of(u32 from, u32 to, u8 path, u32* out) const noexcept {
  FabricPacket packet{};
  path = taken(from, to, path, 0);
  packet.to = to;
  packet.hash = hash_of(from, to, path);
  std::size_t count = 0;
  for (u32 port = host_port(from, path); port != core::kNone && count < kHopsMax;) {
    out[count++] = port;
    const u32 node = ports[port].to();
    if (node == to) return count;
    if (by_queues(ecmp_) && ways(node, to, 0).count > 1) return 0;
    port = route(node, &packet, 0);
  }
  return 0;
}

FabricNet::Ways FabricNet::ways(u32 node, u32 to, i64 at_ps) const noexcept {
  for (u32 i = attached_begin_[to]; i < attached_begin_[to + 1u]; ++i) {
    if (attached_[i].node == node) return {core::kNone, &attached_[i].port, 1};
  }
  std::size_t at = std::size_t{node - hosts_} * groups_ + group_of_[to];
  if (!route_at_ps_.empty()) {
    const auto later = std::upper_bound(route_at_ps_.begin(), route_at_ps_.end(), at_ps) - route_at_ps_.begin();
    at += static_cast<std::size_t>(later) * (route_.size() / (1 + route_at_ps_.size()));
  }
  const i32 set = route_[at];
  if (set < 0) return {};
  const u32 begin = set_begin_[static_cast<u32>(set)];
  return {static_cast<u32>(set), &set_ports_[begin], set_begin_[static_cast<u32>(set) + 1u] - begin};
}

u32 FabricNet::route(u32 node, FabricPacket* packet, i64 at_ps) const noexcept {
  const Ways found = ways(node, packet->to, at_ps);
  if (found.count == 0) return core::kNone;
  if (found.count == 1) return found.ports[0];
  if (ecmp_ == Ecmp::even) {  // `hash` is the path's number, and each switch uses its next digit
    const u32 way = packet->hash % found.count;
    packet->hash /= found.count;
    return found.ports[way];
  }
  const u64 draw = mixed(seed_ ^ u64{node} << 32, packet->hash) >> 32;
  return found.ports[static_cast<u32>(draw * found.count >> 32)];
}

}  // namespace weft::sim
