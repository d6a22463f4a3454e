// Adds up the segments of each transfer by path, and keeps events and states of paths in order of time.
#include "native/sim/fabric/fabric_trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "native/sim/fabric/fabric_host.h"

namespace weft::sim {
namespace {

using Kind = core::Event::Kind;

constexpr std::pair<Kind, const char*> kRecorded[] = {
    {Kind::path_down, "path_down"}, {Kind::path_up, "path_up"},         {Kind::peer_quiet, "peer_quiet"},
    {Kind::peer_dead, "peer_dead"}, {Kind::flow_failed, "flow_failed"}, {Kind::flow_stuck, "flow_stuck"},
    {Kind::loss, "loss"},           {Kind::timeout, "timeout"},         {Kind::policy_failed, "policy_failed"},
};

constexpr core::Traced traced_kinds() noexcept {
  core::Traced kinds = core::traced(Kind::message_started, Kind::segments_sent, Kind::segments_resent);
  for (const auto& [kind, name] : kRecorded) kinds |= core::traced(kind);
  return kinds;
}

}  // namespace

const char* event_name(u32 kind) noexcept {
  for (const auto& [known, name] : kRecorded) {
    if (static_cast<u32>(known) == kind) return name;
  }
  return nullptr;
}

FabricTrace::FabricTrace(const FabricPlan& plan, u32 host, core::Stack* stack, const FabricWork& work,
                         const std::vector<u32>& peers, const std::vector<u32>& connections,
                         std::vector<TransferTrace>* transfers)
    : plan_(plan),
      host_(host),
      stack_(stack),
      work_(work),
      peers_(peers),
      connections_(connections),
      transfers_(transfers) {
  static_cast<void>(stack_->trace().subscribe(this, traced_kinds()));
}

TransferTrace* FabricTrace::sent(const core::Event& event) noexcept {
  const u32 number = event.flow < connections_.size() ? connections_[event.flow] : core::kNone;
  if (event.receives || number == core::kNone) return nullptr;
  const FabricConnection& connection = work_.connections[number];
  if (connection.from != host_ || event.message >= connection.count) return nullptr;
  return &(*transfers_)[work_.order[connection.first + event.message]];
}

void FabricTrace::on_event(i64 now_ns, const core::Event& event) noexcept {
  const i64 at_ns = now_ns - FabricHost::kBeginNs;
  if (event.kind == Kind::message_started) {
    if (TransferTrace* const transfer = sent(event)) transfer->first_ns = at_ns;
    return;
  }
  if (event.kind == Kind::segments_sent || event.kind == Kind::segments_resent) {
    TransferTrace* const transfer = sent(event);
    if (transfer == nullptr) return;
    const auto count = static_cast<u32>(event.value);
    transfer->segments += count;
    transfer->by_path[std::min<std::size_t>(event.path, TransferTrace::kPaths - 1)] += count;
    if (event.kind == Kind::segments_resent) {
      transfer->resent += count;
    } else {
      transfer->last_ns = at_ns;
    }
    return;
  }
  if (events_.size() == kEventsMax) {
    ++dropped_;
    return;
  }
  const core::Flow* const flow = event.flow == core::kNone ? nullptr : stack_->flow(event.flow);
  const u32 peer = event.peer != core::kNone || flow == nullptr ? event.peer : flow->config.peer;
  events_.push_back({
      .at_ns = at_ns,
      .value = event.value,
      .host = host_,
      .peer = peer < peers_.size() ? peers_[peer] : core::kNone,
      .stream = event.flow < connections_.size() ? connections_[event.flow] : core::kNone,
      .path = event.path,
      .kind = static_cast<u32>(event.kind),
      .status = static_cast<u32>(event.status),
  });
}

void FabricTrace::find_twins() {
  std::map<u32, u32> last;  // host -> the last peer that is this host
  next_twin_.assign(peers_.size(), core::kNone);
  is_first_.assign(peers_.size(), true);
  for (u32 peer = 0; peer < peers_.size(); ++peer) {
    const auto [before, is_new] = last.try_emplace(peers_[peer], peer);
    if (is_new) continue;
    is_first_[peer] = false;
    next_twin_[before->second] = peer;
    before->second = peer;
  }
}

telemetry::PathCounters FabricTrace::counters(u32 peer, u32 path) const noexcept {
  telemetry::PathCounters sum = stack_->peer(peer)->paths().counters(path);
  for (u32 twin = next_twin_[peer]; twin != core::kNone; twin = next_twin_[twin]) {
    const core::Peer* const known = stack_->peer(twin);
    if (known == nullptr) continue;
    const telemetry::PathCounters other = known->paths().counters(path);
    sum.bytes_sent += other.bytes_sent;
    sum.segments_sent += other.segments_sent;
    sum.segments_lost += other.segments_lost;
    if (sum.rtt_ns == 0) sum.rtt_ns = other.rtt_ns;
    if (other.usable != 0) sum.usable = other.usable;
  }
  return sum;
}

void FabricTrace::look_at_paths(i64 at_ns) {
  if (at_ns < next_ns_) return;
  next_ns_ = at_ns - at_ns % plan_.trace_ns + plan_.trace_ns;
  if (segments_seen_.size() != peers_.size()) find_twins();
  segments_seen_.resize(peers_.size());
  for (u32 peer = 0; peer < peers_.size(); ++peer) {
    const core::Peer* const known = stack_->peer(peer);
    if (known == nullptr || !is_first_[peer]) continue;
    for (u32 path = 0; path < known->paths().count(); ++path) {
      const telemetry::PathCounters now = counters(peer, path);
      if (std::exchange(segments_seen_[peer][path], now.segments_sent) == now.segments_sent) continue;
      paths_.push_back({at_ns, now.rtt_ns, now.bytes_sent, now.segments_sent, now.segments_lost, host_, peers_[peer],
                        path, now.usable != 0 ? 1u : 0u});
    }
  }
}

}  // namespace weft::sim
