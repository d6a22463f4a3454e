// Starts the path policy at its first call, and replaces one that fails by `fixed`.
#include "native/core/path_control.h"

namespace weft::core {

bool PathControl::start(const PathFacts& facts) noexcept {
  if (!policy_.is_open() && !policy_.open(count_)) return false;
  started_ = true;
  mirror_all(facts.states);
  policy::PathEvent start = event(facts);
  start.kind = -1;
  policy::PathResult result{};
  if (policy_.call(policy::hook::start, &start, &result, shared_->trace, peer_)) return true;
  shared_->on_policy_failed(policy_.descriptor(), policy::hook::start, kNone, peer_);
  if (!policy_.fall_back()) return true;  // no memory for `fixed`: paths are picked without a policy
  mirror_all(facts.states);
  static_cast<void>(policy_.call(policy::hook::start, &start, &result, shared_->trace, peer_));  // `fixed` never fails
  return true;
}

bool PathControl::ask(std::size_t hook, const PathFacts& facts, policy::PathEvent* event,
                      policy::PathResult* result) noexcept {
  if (!started_ && !start(facts)) return false;
  if (policy_.call(hook, event, result, shared_->trace, peer_)) return true;
  shared_->on_policy_failed(policy_.descriptor(), hook, kNone, peer_);
  if (policy_.fall_back()) static_cast<void>(start(facts));
  *result = policy::PathResult{};
  return policy_.call(hook, event, result, shared_->trace, peer_);
}

bool PathControl::replace(const PathFacts& facts, PolicyChoice choice) noexcept {
  if (!policy_.replace(choice)) return false;
  if (policy_.is_open()) mirror_all(facts.states);
  if (started_) static_cast<void>(start(facts));
  return true;
}

}  // namespace weft::core
