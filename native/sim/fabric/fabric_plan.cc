// Validates plans and estimates how much memory a run takes.
#include "native/sim/fabric/fabric_plan.h"

#include <algorithm>
#include <cstddef>

#include "native/core/stack.h"
#include "native/sim/fabric/fabric_checks.h"
#include "native/sim/fabric/fabric_packet.h"
#include "native/sim/fabric/fabric_port.h"
#include "native/sim/fabric/fabric_work.h"

namespace weft::sim {
namespace {

constexpr i64 kFar = 1'000'000'000'000'000;   // largest time, in ns: eleven days, which fit in 64 bits as picoseconds
constexpr i64 kRateMax = 10'000'000'000'000;  // largest rate, in bytes per second

std::string at(const char* what, std::size_t index) {
  return std::string(what).append(" ").append(std::to_string(index)).append(": ");
}

std::string port_complaint(const FabricPlan& plan) {
  const u32 nodes = plan.hosts + plan.switches;
  std::vector<u8> leaves(plan.hosts, 0);
  for (std::size_t i = 0; i < plan.ports.size(); ++i) {
    const PortPlan& port = plan.ports[i];
    if (port.from >= nodes || port.to >= nodes || port.from == port.to)
      return at("port", i) + "`from` and `to` that are two different existing nodes";
    if (i != 0 && port.from < plan.ports[i - 1].from) return at("port", i) + "ports sorted by `from`";
    if (port.bytes_per_s <= 0 || port.bytes_per_s > kRateMax) return at("port", i) + "a rate from 1 to 10^13 bytes/s";
    if (port.delay_ns < 1 || port.delay_ns > kFar) return at("port", i) + "delay_ns from 1 ns to 11 days";
    if (port.queue_bytes_max < plan.segment_bytes + plan.wire_overhead_bytes)
      return at("port", i) + "a queue_bytes_max that holds a segment as it is on the wire";
    if (port.burst_bytes < 0 || port.burst_bytes / port.bytes_per_s > 1'000)
      return at("port", i) + "burst_bytes that take 0 to 1000 s at the port's rate";
    if (port.mark_from_bytes < 0 || port.mark_full_bytes < port.mark_from_bytes)
      return at("port", i) + "0 <= mark_from_bytes <= mark_full_bytes";
    if (!(port.loss >= 0 && port.loss <= 1) || !(port.bit_error_rate >= 0 && port.bit_error_rate <= 1))
      return at("port", i) + "a loss and a bit error rate from 0 to 1";
    if (!(port.reorder >= 0 && port.reorder <= 1) || port.reorder_ns_max < 0 || port.reorder_ns_max > kFar)
      return at("port", i) + "a share of reordered packets from 0 to 1, delayed by 0 ns to 11 days";
    if (port.from < plan.hosts) {
      leaves[port.from] = 1;
      if (port.to < plan.hosts) return at("port", i) + "a switch at one end, because hosts cannot be linked directly";
    }
  }
  for (u32 host = 0; host < plan.hosts; ++host) {
    if (leaves[host] == 0) return at("host", host) + "a port";
  }
  return "";
}

std::string route_complaint(const FabricPlan& plan) {
  if (plan.group_of.size() != plan.hosts) return "a group (group_of) for every host";
  for (const u32 group : plan.group_of) {
    if (group >= plan.groups) return "numbers in group_of below `groups`";
  }
  const std::size_t table = std::size_t{plan.switches} * plan.groups;
  if (plan.route.size() != table * (1 + plan.route_at_ns.size())) return "a route from every switch to every group";
  if (!std::is_sorted(plan.route_at_ns.begin(), plan.route_at_ns.end()) ||
      (!plan.route_at_ns.empty() && (plan.route_at_ns.front() < 0 || plan.route_at_ns.back() > kFar))) {
    return "route_at_ns that ascends from 0 to 11 days";
  }
  if (plan.set_begin.empty() || plan.set_begin.front() != 0 || plan.set_begin.back() != plan.set_ports.size() ||
      !std::is_sorted(plan.set_begin.begin(), plan.set_begin.end())) {
    return "set_begin that ascends from 0 to the number of set_ports";
  }
  for (std::size_t i = 0; i < plan.route.size(); ++i) {
    if (plan.route[i] < 0) continue;
    const auto set = static_cast<std::size_t>(plan.route[i]);
    if (set + 1 >= plan.set_begin.size() || plan.set_begin[set] == plan.set_begin[set + 1])
      return at("route", i) + "the number of a set of ports that exists and is not empty";
    for (u32 k = plan.set_begin[set]; k < plan.set_begin[set + 1]; ++k) {
      const u32 port = plan.set_ports[k];
      if (port >= plan.ports.size() || plan.ports[port].from != plan.hosts + i % table / plan.groups)
        return at("route", i) + "ports of its own switch";
    }
  }
  for (std::size_t i = 0; i < plan.changes.size(); ++i) {
    const PortChange& change = plan.changes[i];
    if (change.at_ns < 0 || change.at_ns > kFar || change.port >= plan.ports.size())
      return at("change", i) + "at_ns from 0 to 11 days and a port that exists";
    if (change.bytes_per_s == 0 || change.bytes_per_s > kRateMax || change.loss > 1)
      return at("change", i) + "a rate above 0 and a loss up to 1";
  }
  for (std::size_t i = 0; i < plan.choices.size(); ++i) {
    const PathChoice& choice = plan.choices[i];
    if (choice.at_ns < 0 || choice.at_ns > kFar || choice.from >= plan.hosts || choice.to >= plan.hosts)
      return at("choice", i) + "at_ns from 0 to 11 days and hosts that exist";
    if (choice.path >= core::kMaxPaths || choice.takes >= core::kMaxPaths) return at("choice", i) + "paths up to 255";
  }
  return "";
}

std::string work_complaint(const FabricPlan& plan) {
  if (plan.transfers.size() > FabricChecks::kTransfersMax) return "at most 2^23 - 1 transfers";
  for (std::size_t i = 0; i < plan.transfers.size(); ++i) {
    const TransferPlan& transfer = plan.transfers[i];
    if (transfer.from >= plan.hosts || transfer.to >= plan.hosts) return at("transfer", i) + "hosts that exist";
    if (transfer.is_local() && transfer.bytes != 0) return at("transfer", i) + "no bytes from a host to itself";
    if (transfer.bytes > core::kMessageBytesMax) return at("transfer", i) + "2^40 bytes at most";
    if (transfer.start_ns < 0 || transfer.start_ns > kFar) return at("transfer", i) + "start_ns from 0 to 11 days";
  }
  for (std::size_t i = 0; i < plan.dependencies.size(); ++i) {
    const DependencyPlan& dependency = plan.dependencies[i];
    if (dependency.before >= plan.transfers.size() || dependency.after >= plan.transfers.size())
      return at("dependency", i) + "transfers that exist";
    const TransferPlan& before = plan.transfers[dependency.before];
    const u32 host = plan.transfers[dependency.after].from;
    if (before.from != host && before.to != host)
      return at("dependency", i) + "`before` to finish at the host where `after` starts";
    if (dependency.delay_ns < 0 || dependency.delay_ns > kFar)
      return at("dependency", i) + "delay_ns from 0 to 11 days";
  }
  return "";
}

std::string policy_complaint(const FabricPlan& plan) {
  if (plan.policy_set_of.empty()) return "";
  if (plan.policy_set_of.size() != plan.transfers.size()) return "the number of a policy set for every transfer";
  for (std::size_t i = 0; i < plan.policy_set_of.size(); ++i) {
    if (plan.policy_set_of[i] > plan.policy_sets.size()) return at("transfer", i) + "a policy set that exists";
  }
  FabricWork work;
  work.open(plan);
  for (const FabricConnection& connection : work.connections) {
    const u16 first = plan.policy_set_of[work.order[connection.first]];
    for (u32 k = 1; k < connection.count; ++k) {
      const u32 transfer = work.order[connection.first + k];
      if (plan.policy_set_of[transfer] != first)
        return at("transfer", transfer) + "the same policy set as the other transfers of its connection";
    }
  }
  return "";
}

// Whether transfers wait for each other in a cycle, and so for ever. Sorts them topologically (Kahn) by their
// dependencies and by the order within each connection.
bool has_circle(const FabricPlan& plan) {
  FabricWork work;
  work.open(plan);
  std::vector<u32> waits = work.waits_for;
  for (const FabricConnection& connection : work.connections) {
    for (u32 k = 1; k < connection.count; ++k) ++waits[work.order[connection.first + k]];
  }
  std::vector<u32> free;
  for (u32 i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) free.push_back(i);
  }
  std::size_t seen = 0;
  while (!free.empty()) {
    const u32 transfer = free.back();
    free.pop_back();
    ++seen;
    for (u32 k = work.next_begin[transfer]; k < work.next_begin[transfer + 1u]; ++k) {
      if (--waits[work.next[k].after] == 0) free.push_back(work.next[k].after);
    }
    if (plan.transfers[transfer].is_local()) continue;
    const FabricConnection& connection = work.connections[work.connection_of[transfer]];
    const u32 number = work.number_of[transfer] + 1;
    if (number < connection.count && --waits[work.order[connection.first + number]] == 0)
      free.push_back(work.order[connection.first + number]);
  }
  return seen != waits.size();
}

}  // namespace

std::string complaint(const FabricPlan& plan) {
  if (plan.hosts < 2 || plan.switches < 1) return "at least two hosts and one switch";
  if (u64{plan.hosts} + plan.switches > 1u << 24 || plan.ports.size() > 1u << 26)
    return "at most 2^24 hosts and switches, and 2^26 ports";
  if (plan.threads < 1 || plan.threads > 64) return "1 to 64 threads";
  if (plan.paths < 1 || plan.paths > core::kMaxPaths) return "1 to 256 paths";
  if (plan.segment_bytes < 128) return "segment_bytes of 128 or more";
  if (plan.burst_bytes_max > 1u << 20) return "burst_bytes_max of 1 MiB at most";
  if (plan.ahead < 1 || plan.ahead > 256) return "1 to 256 messages posted at a time (ahead)";
  if (plan.limit_ns < 1 || plan.limit_ns > kFar) return "a time limit (limit_ns) from 1 ns to 11 days";
  if (plan.ack_bytes < 1 || plan.ack_delay_ns < 0 || plan.rto_ns_min < 1 || plan.rto_ns_max < plan.rto_ns_min ||
      plan.window_bytes_max < plan.segment_bytes || plan.rtt_ns < 0 || plan.rtt_expected_ns < 0 ||
      plan.host_delay_ns < 0 || plan.host_jitter_ns < 0 || plan.peer_silence_ns < 1 || plan.sample_ns < 0 ||
      plan.trace_ns < 0 || plan.link_bytes_per_s < 0 || plan.header_queue_bytes_max < 0) {
    return "no negative times and sizes, ack_bytes, rto_ns_min and peer_silence_ns of 1 or more, rto_ns_max of "
           "at least rto_ns_min, and window_bytes_max of at least segment_bytes";
  }
  if (plan.host_delay_ns > kFar || plan.host_jitter_ns > kFar || plan.peer_silence_ns > kFar * 10)
    return "host_delay_ns and host_jitter_ns of at most 11 days, and peer_silence_ns of at most 110 days";
  if (plan.buffer_bytes < 0 || plan.buffer_bytes > i64{1} << 40 || !(plan.buffer_alpha > 0) || plan.buffer_alpha > 1024)
    return "buffer_bytes of 0 to 2^40, and buffer_alpha of more than 0 and at most 1024";
  if (plan.pause_bytes != 0 && (plan.resume_bytes < 0 || plan.resume_bytes >= plan.pause_bytes))
    return "resume_bytes of 0 or more and less than pause_bytes";
  if (plan.recording_bytes_max != 0 && (plan.threads > 1 || plan.hosts > 256))
    return "one thread and at most 256 hosts if decisions are recorded";
  if (plan.sample_ns != 0 && plan.limit_ns / plan.sample_ns > 10'000'000)
    return "at most 10^7 samples: a larger sample_ns, or a smaller limit_ns";
  for (const auto& part : {port_complaint, route_complaint, work_complaint, policy_complaint}) {
    const std::string found = part(plan);
    if (!found.empty()) return found;
  }
  for (const u32 port : plan.sample_ports) {
    if (port >= plan.ports.size()) return "sampled ports (sample_ports) that exist";
  }
  for (const u32 transfer : plan.sample_streams) {
    if (transfer >= plan.transfers.size() || plan.transfers[transfer].is_local())
      return "sampled transfers (sample_streams) that exist and are not local";
  }
  if (has_circle(plan))
    return "dependencies without a cycle (a transfer also waits for earlier ones of its connection)";
  return "";
}

bool reads_hops(const FabricPlan& plan) noexcept {
  const auto reads = [](const core::PolicyChoice& window) {
    return window.descriptor != nullptr && window.descriptor->event_bytes > offsetof(policy::WindowEvent, hops);
  };
  return reads(plan.window) || std::any_of(plan.policy_sets.begin(), plan.policy_sets.end(),
                                           [&](const PolicySetPlan& own) { return reads(own.window); });
}

i64 estimated_bytes(const FabricPlan& plan) {
  // Memory of connections: each end has a peer with paths and a flow with windows. The constants were measured and
  // include a margin.
  FabricWork work;
  work.open(plan);
  const auto connections = static_cast<i64>(work.connections.size());
  const i64 by_path = static_cast<i64>(sizeof(core::PathState) + 2 * sizeof(core::FlowPath)) + 160;
  const i64 by_end = static_cast<i64>(sizeof(core::Peer) + sizeof(core::Flow)) + 1024 + plan.paths * by_path;
  // Memory of packets in flight, with their ledger entries: as many as fit the bandwidth-delay product and the queues.
  i64 wire_bytes = 0;
  for (const PortPlan& port : plan.ports) {
    const bool shares = plan.buffer_bytes != 0 && port.from >= plan.hosts;
    wire_bytes += (shares ? 0 : port.queue_bytes_max / 8) + port.bytes_per_s / 1'000'000 * port.delay_ns / 1000;
  }
  wire_bytes += plan.buffer_bytes / 8 * plan.switches;
  const i64 packets = wire_bytes / plan.segment_bytes + plan.hosts;
  return static_cast<i64>(plan.hosts) * static_cast<i64>(sizeof(core::Stack) + 4096) +
         static_cast<i64>(plan.ports.size()) * static_cast<i64>(sizeof(FabricPort) + sizeof(PortPlan)) +
         2 * connections * by_end + static_cast<i64>(2 * work.bytes_held()) +
         static_cast<i64>(plan.transfers.size() * sizeof(TransferPlan)) +
         static_cast<i64>(plan.route.size() * 2 * sizeof(i32)) + packets * 384;
}

}  // namespace weft::sim
