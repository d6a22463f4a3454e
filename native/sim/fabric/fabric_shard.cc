// Distributes a window's events to their nodes, and sorts the events of each node by themselves, which is cheaper than
// sorting all events.
#include "native/sim/fabric/fabric_shard.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::sim {

FabricShard::FabricShard(u32 index, u32 shards, const FabricPlan& plan, FabricNet* net, FabricWork* work,
                         FabricNodes* nodes, i64 window_ps)
    : index_(index),
      hosts_(plan.hosts),
      window_ps_(window_ps),
      nodes_(nodes),
      calendar_(window_ps, &nodes->color_of),
      burst_(std::make_unique<core::TxBurst>()),
      pfc_(plan.pause_bytes > 0),
      alone_(shards == 1),
      places_(plan.hosts + plan.switches, 0),
      outbox_(shards),
      returned_(shards) {
  for (u32 i = 0; i < work->connections.size(); ++i) {
    if (nodes->shard_of[work->connections[i].from] != index) continue;
    sends_.push_back(i);
    transfers_ += work->connections[i].count;
  }
  while ((2 * window_ps >> time_shift_) >= static_cast<i64>(kTimes)) ++time_shift_;
  if (plan.trace_ns == 0) path_counters_ = std::make_unique<core::PathCells[]>(plan.paths);
  if (reads_hops(plan)) telemetry_ = std::make_unique<FabricTelemetry>();
  if (plan.check) checks_ = std::make_unique<FabricChecks>(plan, *work);
  shared_.plan = &plan;
  shared_.net = net;
  shared_.work = work;
  shared_.sink = this;
  shared_.packets = &packets_;
  shared_.burst = burst_.get();
  shared_.checks = checks_.get();
  shared_.telemetry = telemetry_.get();
}

// Packets in flight need no cleanup, because the pool frees all packets at once.
FabricShard::~FabricShard() = default;

void FabricShard::enlist(u32 host) {
  FabricHost& at = *nodes_->hosts[host];
  if (at.next_ps() >= at.pending_ps) return;
  at.pending_ps = at.next_ps();
  calendar_.push({at.pending_ps, host, FabricDue::kSelf, nullptr});
}

void FabricShard::left(const FabricPacket& packet, u32 port, i64 at_ps) {
  const u32 from = shared_.net->ports[port].from();
  if (from >= hosts_) nodes_->switches[from - hosts_].on_left(&shared_, packet, at_ps);
}

void FabricShard::import_from(FabricShard& other) {
  std::vector<FabricDue>& box = other.outbox_[index_];
  for (const FabricDue& due : box) calendar_.push(due);
  packets_.share(box.size(), &other.returned_[index_]);
  box.clear();
}

bool FabricShard::lasts() noexcept {
  if (shared_.begun < transfers_) return true;
  constexpr std::size_t kLooks = 32;
  for (std::size_t looks = 0; looks < std::min(kLooks, sends_.size()); ++looks) {
    const FabricConnection& at = shared_.work->connections[sends_[sends_at_]];
    if (nodes_->hosts[at.from]->stack().flow(at.at_sender)->tx.unsent_bytes() != 0) return true;
    sends_at_ = sends_at_ + 1 == sends_.size() ? 0 : sends_at_ + 1;
  }
  return false;
}

void FabricShard::step(u32 colors, i64 end) {
  for (FabricPacketPool& pool : returned_) pool.share_all(&packets_);
  i64 begin = end;
  for (std::size_t color = 0; color < FabricCalendar::kColors; ++color) {
    if ((colors >> color & 1u) == 0) continue;
    begin = std::min(begin, calendar_.front(color));
    calendar_.take(color, end);
  }
  if (checks_ != nullptr) check_late(begin, end);
  distribute();
  calendar_.forget_taken();
  const i64 end_ps = end * window_ps_;
  for (std::size_t k = 0; k < active_.size(); ++k) {
    prefetch(k);
    handle(k, begin * window_ps_, end_ps);
    note({begin, active_[k]});
  }
}

void FabricShard::note(const FabricMoment& now) noexcept {
  const auto stamp = [&now](FabricMoment* first, const std::string& text) {
    if (!text.empty() && first->window == core::kNever) *first = now;
  };
  if (checks_ != nullptr) stamp(&first_violation_, checks_->violation());
  stamp(&first_failure_, shared_.failure);
  stamp(&first_policy_failure_, shared_.policy_failure);
}

// Reports each node that got an event outside this time window. Goes through the nodes in order, so that the first
// violation is the same for any distribution of nodes to shards.
void FabricShard::check_late(i64 begin, i64 end) {
  active_.clear();
  calendar_.each_taken([&](const FabricDue& due) {
    if (due.at_ps < begin * window_ps_ || due.at_ps >= end * window_ps_) active_.push_back(due.node);
  });
  std::sort(active_.begin(), active_.end());
  for (const u32 node : active_) {
    checks_->on_late(node);
    note({begin, node});
  }
}

// Groups the events of a round by node. Each node's are in the order in which they were pushed.
void FabricShard::distribute() {
  active_.clear();
  u32 hops = 0;
  calendar_.each_taken([&](const FabricDue& due) {
    hops += due.packet != nullptr ? 1 : 0;
    if (places_[due.node]++ == 0) active_.push_back(due.node);
  });
  packet_hops_ += hops;
  std::sort(active_.begin(), active_.end());
  begins_.resize(active_.size() + 1);
  u32 place = 0;
  for (std::size_t k = 0; k < active_.size(); ++k) {
    begins_[k] = place;
    place += std::exchange(places_[active_[k]], place);
  }
  begins_.back() = place;
  dues_.resize(place);
  calendar_.each_taken([&](const FabricDue& due) { dues_[places_[due.node]++] = due; });
  for (const u32 node : active_) places_[node] = 0;
}

// Prefetches what the nodes after `place` will access, because nearly all of it would miss the caches. A pointer is
// followed only after the memory that holds it was prefetched, for an earlier node.
void FabricShard::prefetch(std::size_t place) const noexcept {
  core::keep_prefetches();
  const auto host_at = [&](std::size_t ahead) -> const FabricHost* {
    const bool is_host = place + ahead < active_.size() && active_[place + ahead] < hosts_;
    return is_host ? nodes_->hosts[active_[place + ahead]].get() : nullptr;
  };
  if (const FabricHost* host = host_at(6)) host->prefetch();
  if (const FabricHost* host = host_at(5)) host->prefetch_lists();
  if (const FabricHost* host = host_at(4)) host->prefetch_flows();
  if (const FabricHost* host = host_at(3)) {
    host->prefetch_peers();
    shared_.net->ports[shared_.net->first_port[active_[place + 3]]].prefetch(true);
  }
  if (const FabricHost* host = host_at(2)) host->prefetch_records();
  for (const std::size_t ahead : {3u, 2u, 1u}) {
    if (place + ahead >= active_.size()) continue;
    const FabricHost* const host = host_at(ahead);
    for (u32 i = begins_[place + ahead]; i < begins_[place + ahead + 1]; ++i) {
      if (host == nullptr) {
        prefetch_for_switch(dues_[i], ahead);
      } else if (dues_[i].is_packet()) {
        prefetch_for_host(*host, *dues_[i].packet, ahead);
      }
    }
  }
}

void FabricShard::prefetch_for_host(const FabricHost& host, const FabricPacket& packet, std::size_t ahead) noexcept {
  core::keep_prefetches();
  if (ahead == 3) core::prefetch(&packet, &packet + 1);
  if (ahead == 2 && packet.block != nullptr) core::prefetch(packet.block, packet.block + packet.header_bytes);
  if (ahead == 2) host.prefetch_flow_of(packet);
  if (ahead == 1) host.prefetch_for(packet);
}

void FabricShard::prefetch_for_switch(const FabricDue& due, std::size_t ahead) const noexcept {
  core::keep_prefetches();
  if (due.packet != nullptr) {
    return;
  } else if (due.port < FabricDue::kPause) {
    const FabricPort& port = shared_.net->ports[due.port];
    if (ahead == 2) port.prefetch(false);
    if (ahead == 1) port.prefetch_head();
  }
}

// Sorts the events of one node and returns them. Many events are first put into buckets by time, which leaves little
// for the insertion sort. Both are stable: events that compare equal keep their order.
FabricDue* FabricShard::sort(FabricDue* dues, std::size_t count, i64 begin_ps) {
  constexpr std::size_t kFew = 16;
  if (count > kFew) {
    std::array<u32, kTimes + 1> places{};
    const auto time_of = [&](const FabricDue& due) {
      return std::min(static_cast<std::size_t>(std::max<i64>(due.at_ps - begin_ps, 0)) >> time_shift_, kTimes - 1);
    };
    for (std::size_t i = 0; i < count; ++i) ++places[time_of(dues[i]) + 1];
    for (std::size_t i = 1; i < kTimes; ++i) places[i] += places[i - 1];
    by_time_.resize(std::max(by_time_.size(), count));
    for (std::size_t i = 0; i < count; ++i) by_time_[places[time_of(dues[i])]++] = dues[i];
    dues = by_time_.data();
  }
  for (std::size_t i = 1; i < count; ++i) {
    if (!dues[i].before(dues[i - 1])) continue;
    const FabricDue due = dues[i];
    std::size_t at = i;
    for (; at != 0 && due.before(dues[at - 1]); --at) dues[at] = dues[at - 1];
    dues[at] = due;
  }
  return dues;
}

void FabricShard::handle(std::size_t place, i64 begin_ps, i64 end_ps) {
  const u32 node = active_[place];
  const std::size_t count = begins_[place + 1] - begins_[place];
  const FabricDue* const dues = sort(dues_.data() + begins_[place], count, begin_ps);
  if (node >= hosts_) {
    nodes_->switches[node - hosts_].handle(&shared_, dues, count, end_ps);
  } else {
    handle_host(node, {dues, count}, begin_ps, end_ps);
  }
}

// Handles one window after another, because a host's wake-ups depend on where its windows end. So a round of two
// windows does the same as two rounds.
void FabricShard::handle_host(u32 node, std::span<const FabricDue> dues, i64 begin_ps, i64 end_ps) {
  FabricHost& host = *nodes_->hosts[node];
  i64 wake_ps = core::kNever;  // a wake-up that the first window has scheduled for the second
  std::size_t first = 0;
  for (i64 until_ps = begin_ps + window_ps_; until_ps <= end_ps; until_ps += window_ps_) {
    std::size_t last = first;
    while (last < dues.size() && dues[last].at_ps < until_ps) ++last;
    if (first == last && wake_ps == core::kNever) continue;
    if (host.pending_ps < until_ps) host.pending_ps = core::kNever;
    host.handle(&shared_, dues.data() + first, last - first, std::exchange(wake_ps, core::kNever), until_ps);
    first = last;
    if (host.next_ps() >= host.pending_ps) continue;
    host.pending_ps = host.next_ps();
    if (host.pending_ps < end_ps) {
      wake_ps = host.pending_ps;
    } else {
      calendar_.push({host.pending_ps, node, FabricDue::kSelf, nullptr});
    }
  }
}

}  // namespace weft::sim
