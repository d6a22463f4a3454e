// Distributes a window's events to one list per node, and sorts each list by itself, which is cheaper than sorting all
// events.
#include "native/sim/fabric/fabric_shard.h"

#include <algorithm>
#include <array>

namespace weft::sim {

FabricShard::FabricShard(u32 index, u32 shards, const FabricPlan& plan, FabricNet* net, FabricWork* work,
                         FabricNodes* nodes, i64 window_ps)
    : index_(index),
      hosts_(plan.hosts),
      window_ps_(window_ps),
      nodes_(nodes),
      calendar_(window_ps),
      burst_(std::make_unique<core::TxBurst>()),
      pfc_(plan.pause_bytes > 0),
      heads_(plan.hosts + plan.switches, core::kNone),
      outbox_(shards) {
  if (plan.check) checks_ = std::make_unique<FabricChecks>(plan, *work);
  shared_.plan = &plan;
  shared_.net = net;
  shared_.work = work;
  shared_.sink = this;
  shared_.packets = &packets_;
  shared_.burst = burst_.get();
  shared_.checks = checks_.get();
}

// Packets in flight need no cleanup, because the pool frees all packets at once.
FabricShard::~FabricShard() = default;

void FabricShard::enlist(u32 host) {
  FabricHost& at = *nodes_->hosts[host];
  if (at.next_ps() >= at.pending_ps) return;
  at.pending_ps = at.next_ps();
  calendar_.push({at.pending_ps, host, FabricDue::kSelf, nullptr});
}

void FabricShard::arrive(FabricPacket* packet, u32 port, u32 node) {
  const FabricDue due{packet->due_ps, node, port, packet};
  const u8 shard = nodes_->shard_of[node];
  if (shard == index_) {
    calendar_.push(due);
  } else {
    outbox_[shard].push_back(due);
  }
}

void FabricShard::leave(const FabricPacket& packet, u32 port, i64 at_ps) {
  if (!pfc_) return;
  const u32 from = shared_.net->ports[port].from();
  if (from >= hosts_) nodes_->switches[from - hosts_].on_left(&shared_, packet, at_ps);
}

void FabricShard::import_from(FabricShard& other) {
  for (const FabricDue& due : other.outbox_[index_]) {
    calendar_.push({due.at_ps, due.node, due.port, packets_.copy_of(*due.packet)});
  }
}

void FabricShard::clear_outboxes() noexcept {
  for (std::vector<FabricDue>& box : outbox_) {
    for (const FabricDue& due : box) packets_.give(due.packet);
    box.clear();
  }
}

void FabricShard::step(i64 window) {
  calendar_.take(window, &due_);
  if (checks_ != nullptr) check_late(window);
  chain_.resize(due_.size());
  active_.clear();
  // Goes backwards, so that each node's list is in the order in which its events were pushed.
  for (std::size_t i = due_.size(); i-- != 0;) {
    u32& head = heads_[due_[i].node];
    if (head == core::kNone) active_.push_back(due_[i].node);
    chain_[i] = head;
    head = static_cast<u32>(i);
  }
  std::sort(active_.begin(), active_.end());
  const i64 end_ps = (window + 1) * window_ps_;
  gather(0, &next_);
  for (std::size_t k = 0; k < active_.size(); ++k) {
    sorted_.swap(next_);
    // Prefetches the next node's data before this node's events are handled, because nearly every first access would
    // miss the cache.
    if (k + 1 < active_.size()) gather(k + 1, &next_);
    handle(active_[k], end_ps);
    note({window, active_[k]});
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
void FabricShard::check_late(i64 window) {
  active_.clear();
  for (const FabricDue& due : due_) {
    if (due.at_ps / window_ps_ != window) active_.push_back(due.node);
  }
  std::sort(active_.begin(), active_.end());
  for (const u32 node : active_) {
    checks_->on_late(node);
    note({window, node});
  }
}

void FabricShard::gather(std::size_t place, std::vector<FabricDue>* out) {
  out->clear();
  if (place == active_.size()) return;
  const u32 node = active_[place];
  if (node < hosts_) nodes_->hosts[node]->prefetch();
  for (u32 i = heads_[node]; i != core::kNone; i = chain_[i]) {
    out->push_back(due_[i]);
    if (due_[i].packet == nullptr) continue;
    ++packet_hops_;
    __builtin_prefetch(due_[i].packet);
    if (node < hosts_) __builtin_prefetch(due_[i].packet->inline_header + 32);
  }
  heads_[node] = core::kNone;
}

// Sorts events into buckets by time, after which little is left for the insertion sort.
void FabricShard::deal(i64 begin_ps) {
  std::array<u32, kTimes + 1> place{};
  const auto time_of = [&](const FabricDue& due) {
    return static_cast<std::size_t>((due.at_ps - begin_ps) * static_cast<i64>(kTimes) / window_ps_);
  };
  for (const FabricDue& due : sorted_) ++place[time_of(due) + 1];
  for (std::size_t i = 1; i <= kTimes; ++i) place[i] += place[i - 1];
  dealt_.resize(sorted_.size());
  for (const FabricDue& due : sorted_) dealt_[place[time_of(due)]++] = due;
  sorted_.swap(dealt_);
}

// Sorts the events of one node by a stable insertion sort; events that compare equal keep their order.
void FabricShard::sort(i64 begin_ps) {
  constexpr std::size_t kFew = 12;
  if (sorted_.size() > kFew) deal(begin_ps);
  for (std::size_t i = 1; i < sorted_.size(); ++i) {
    const FabricDue due = sorted_[i];
    std::size_t at = i;
    for (; at != 0 && due.before(sorted_[at - 1]); --at) sorted_[at] = sorted_[at - 1];
    sorted_[at] = due;
  }
}

void FabricShard::handle(u32 node, i64 end_ps) {
  sort(end_ps - window_ps_);
  if (node >= hosts_) {
    nodes_->switches[node - hosts_].handle(&shared_, sorted_.data(), sorted_.size(), end_ps);
    return;
  }
  FabricHost& host = *nodes_->hosts[node];
  if (host.pending_ps < end_ps) host.pending_ps = core::kNever;
  host.handle(&shared_, sorted_.data(), sorted_.size(), end_ps);
  enlist(node);
}

}  // namespace weft::sim
