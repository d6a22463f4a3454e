// Routes packets: a switch sends them directly to a host attached to it, and otherwise by the destination's group. If a
// route has several ports, a hash selects one.
#include "native/sim/fabric/fabric_net.h"

#include <map>
#include <utility>

namespace weft::sim {
namespace {

// A 64-bit hash with a key (from SplitMix64), so that every switch selects ports independently.
u64 mixed(u64 key, u64 value) noexcept { return core::Random(key ^ value * 0x9E3779B97F4A7C15u).next(); }

}  // namespace

void FabricNet::open(const FabricPlan& plan, const FabricRules* rules) {
  hosts_ = plan.hosts;
  groups_ = plan.groups;
  seed_ = mixed(plan.seed, 0x45434D50);
  even_ = plan.ecmp == Ecmp::even;
  group_of_ = plan.group_of;
  route_ = plan.route;
  set_begin_ = plan.set_begin;
  set_ports_ = plan.set_ports;
  const u32 nodes = plan.hosts + plan.switches;
  const auto count = static_cast<u32>(plan.ports.size());
  ports.resize(count);
  first_port.assign(nodes + 1u, 0);
  attached_begin_.assign(hosts_ + 1u, 0);
  for (u32 i = 0; i < count; ++i) {
    ports[i].open(plan.ports[i], i, mixed(plan.seed, (u64{2} << 40) + i), rules);
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

u32 FabricNet::hash_of(u32 from, u32 to, u8 path) const noexcept {
  if (even_) return path;
  return static_cast<u32>(mixed(seed_ + path, u64{from} << 32 | to) >> 32);
}

std::size_t FabricNet::ports_of(u32 from, u32 to, u8 path, u32* out) const noexcept {
  FabricPacket packet{};
  packet.to = to;
  packet.hash = hash_of(from, to, path);
  std::size_t count = 0;
  for (u32 port = host_port(from, path); port != core::kNone && count < kHopsMax;) {
    out[count++] = port;
    const u32 node = ports[port].to();
    if (node == to) return count;
    port = route(node, &packet);
  }
  return 0;
}

u32 FabricNet::route(u32 node, FabricPacket* packet) const noexcept {
  for (u32 i = attached_begin_[packet->to]; i < attached_begin_[packet->to + 1u]; ++i) {
    if (attached_[i].node == node) return attached_[i].port;
  }
  const i32 set = route_[std::size_t{node - hosts_} * groups_ + group_of_[packet->to]];
  if (set < 0) return core::kNone;
  const u32 begin = set_begin_[static_cast<u32>(set)];
  const u32 count = set_begin_[static_cast<u32>(set) + 1u] - begin;
  if (count == 1) return set_ports_[begin];
  if (even_) {  // ECMP `even`: each switch uses the next digit of the path's number
    const u32 way = packet->hash % count;
    packet->hash /= count;
    return set_ports_[begin + way];
  }
  const u64 draw = mixed(seed_ ^ u64{node} << 32, packet->hash) >> 32;
  return set_ports_[begin + static_cast<u32>(draw * count >> 32)];
}

}  // namespace weft::sim
