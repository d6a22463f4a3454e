// Calls the hooks of a credit policy. A grant never shrinks: if the policy answers less, the previous grant stays.
// Ticks are at least 10 us apart, whatever the policy asks for.
#include "native/core/credit_control.h"

namespace weft::core {

bool CreditControl::open() noexcept {
  if (!policy_.open(1)) return false;
  policy_.share(port_->record.data(), port_->record.size() * sizeof(i64));
  return true;
}

// Calls the start hook. The grant that the start hook returns is ignored, because the hook for the event that caused
// the start is called next.
void CreditControl::start(policy::CreditEvent event) noexcept {
  started_ = true;
  event.kind = -1;
  policy::CreditResult result{static_cast<i64>(granted_bytes_), -1};
  if (policy_.call(policy::hook::start, &event, &result, shared_->trace, flow_)) return;
  shared_->on_policy_failed(policy_.descriptor(), policy::hook::start, flow_, kNone);
  result = policy::CreditResult{static_cast<i64>(granted_bytes_), -1};
  if (policy_.fall_back()) static_cast<void>(policy_.call(policy::hook::start, &event, &result, shared_->trace, flow_));
}

bool CreditControl::ask(std::size_t hook, i64 kind, i64 now_ns, u64 received_bytes) noexcept {
  policy::CreditEvent event{};
  event.now_ns = now_ns;
  event.kind = kind;
  event.demand_bytes = static_cast<i64>(demand_bytes_);
  event.granted_bytes = static_cast<i64>(granted_bytes_);
  event.received_bytes = static_cast<i64>(received_bytes);
  event.segment_bytes = segment_bytes_;
  event.active_flows = port_->active_flows;
  event.link_bytes_per_s = shared_->config.link_bytes_per_s;
  event.ecn_segments = ecn_segments_;
  ecn_segments_ = 0;
  event.rand = shared_->random.uniform();
  policy::CreditResult result{static_cast<i64>(granted_bytes_), -1};
  if (!started_) start(event);
  if (!policy_.call(hook, &event, &result, shared_->trace, flow_)) {
    shared_->on_policy_failed(policy_.descriptor(), hook, flow_, kNone);
    result = policy::CreditResult{static_cast<i64>(granted_bytes_), -1};
    if (policy_.fall_back()) {
      start(event);
      static_cast<void>(policy_.call(hook, &event, &result, shared_->trace, flow_));
    }
  }
  tick_ns_ = result.next_tick_ns < 0 ? kNever : std::max(result.next_tick_ns, now_ns + 10'000);
  if (result.granted_bytes <= static_cast<i64>(granted_bytes_)) return false;
  granted_bytes_ = static_cast<u64>(result.granted_bytes);
  return true;
}

bool CreditControl::on_demand(i64 now_ns, u64 demand_bytes, u64 received_bytes) noexcept {
  // The policy is called for every request, even an unchanged one, because the sender may not have received the grant.
  demand_bytes_ = std::max(demand_bytes_, demand_bytes);
  return ask(policy::hook::credit_demand, 0, now_ns, received_bytes);
}

bool CreditControl::on_timer(i64 now_ns, u64 received_bytes) noexcept {
  if (now_ns < tick_ns_) return false;
  return ask(policy::hook::credit_tick, 1, now_ns, received_bytes);
}

}  // namespace weft::core
