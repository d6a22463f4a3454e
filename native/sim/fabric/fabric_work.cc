// Groups transfers by connection, and dependencies by the transfer that must finish first. Hosts start the transfers.
#include "native/sim/fabric/fabric_work.h"

#include <algorithm>
#include <numeric>

namespace weft::sim {

void FabricWork::open(const FabricPlan& plan) {
  const auto count = static_cast<u32>(plan.transfers.size());
  order.reserve(count);
  for (u32 i = 0; i < count; ++i) {
    if (!plan.transfers[i].is_local()) order.push_back(i);
  }
  const auto key = [&](u32 index) {
    const TransferPlan& transfer = plan.transfers[index];
    return std::pair(u64{transfer.from} << 32 | transfer.to, transfer.stream);
  };
  std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return key(a) < key(b); });
  connection_of.resize(count);
  number_of.resize(count);
  for (u32 i = 0; i < order.size(); ++i) {
    const TransferPlan& transfer = plan.transfers[order[i]];
    if (i == 0 || key(order[i]) != key(order[i - 1])) {
      connections.push_back({transfer.from, transfer.to, transfer.stream, i, 0, 0, 0});
    }
    connection_of[order[i]] = static_cast<u32>(connections.size() - 1);
    number_of[order[i]] = connections.back().count++;
  }
  transfers.resize(count);
  waits_for.assign(count, 0);
  may_start_ns.resize(count);
  for (u32 i = 0; i < count; ++i) may_start_ns[i] = plan.transfers[i].start_ns;
  next_begin.assign(count + 1u, 0);
  for (const DependencyPlan& dependency : plan.dependencies) {
    ++next_begin[dependency.before + 1u];
    ++waits_for[dependency.after];
  }
  std::partial_sum(next_begin.begin(), next_begin.end(), next_begin.begin());
  next.resize(plan.dependencies.size());
  std::vector<u32> place(next_begin.begin(), next_begin.end() - 1);
  for (const DependencyPlan& dependency : plan.dependencies) next[place[dependency.before]++] = dependency;
  for (std::vector<u32>* each : {&posted, &through, &oldest, &posted_receives, &placed})
    each->assign(connections.size(), 0);
  receives.resize(connections.size());
}

std::size_t FabricWork::bytes_held() const noexcept {
  return connections.size() * (sizeof(FabricConnection) + 5 * sizeof(u32) + sizeof(void*)) +
         transfers.size() * (sizeof(TransferReport) + 5 * sizeof(u32) + sizeof(i64)) +
         next.size() * sizeof(DependencyPlan);
}

}  // namespace weft::sim
