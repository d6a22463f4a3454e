// Replaces policies flow by flow, and path policies peer by peer. A new default does not affect flows and peers that
// have a policy choice of their own.
#include "native/core/stack_policies.h"

#include <new>
#include <utility>

#include "native/policy/loader.h"

namespace weft::core {
namespace {

// Replaces an empty choice by `fixed` (except for credit, where it means no policy), and null parameters by the
// policy's defaults.
PolicyChoice said(policy::Family family, PolicyChoice choice) {
  if (!choice && family != policy::Family::credit) choice.descriptor = &policy::fixed(family);
  if (choice && choice.params == nullptr) choice.params = choice.descriptor->params_default;
  return choice;
}

bool same(policy::Family family, PolicyChoice one, PolicyChoice other) {
  one = said(family, one);
  other = said(family, other);
  return one.descriptor == other.descriptor && one.params == other.params;
}

// Whether a flow, or its peer for the path policy, has a policy choice of its own.
bool has_own(policy::Family family, const Flow& flow) noexcept {
  switch (family) {
    case policy::Family::window:
      return static_cast<bool>(flow.config.window);
    case policy::Family::loss:
      return static_cast<bool>(flow.config.loss);
    case policy::Family::path:
      return static_cast<bool>(flow.peer->config().path);
    case policy::Family::credit:
      break;
  }
  return flow.config.own_credit;
}

}  // namespace

CreditPort* StackPolicies::credit_port(PolicyChoice choice) {
  if (!choice) return nullptr;
  std::erase_if(credit_ports_, [](const auto& port) { return port->active_flows == 0; });
  for (const auto& port : credit_ports_) {
    if (port->descriptor == choice.descriptor) return port.get();
  }
  auto port = std::make_unique<CreditPort>();
  port->descriptor = choice.descriptor;
  port->record.resize((choice.descriptor->shared_bytes + 7) / 8);
  credit_ports_.push_back(std::move(port));
  return credit_ports_.back().get();
}

bool StackPolicies::change_flow(i64 now_ns, policy::Family family, u32 index, PolicyChoice choice,
                                bool params_only) noexcept {
  Flow& target = (*flows_)[index];
  bool ok = true;
  switch (family) {
    case policy::Family::window: {
      WindowControl& window = target.tx.window();
      if (params_only) return static_cast<void>(window.set_params(choice)), true;
      ok = target.tx.replace_window(now_ns, choice);
      break;
    }
    case policy::Family::loss:
      if (params_only) return static_cast<void>(target.tx.loss().set_params(choice)), true;
      ok = target.tx.loss().replace(choice);
      break;
    case policy::Family::credit:
      if (params_only && target.rx.credit() != nullptr) {
        return static_cast<void>(target.rx.credit()->set_params(choice)), true;
      }
      try {
        ok = target.rx.set_credit(choice, credit_port(choice));
      } catch (const std::bad_alloc&) {
        ok = false;
      }
      break;
    case policy::Family::path:
      return change_path(now_ns, target.config.peer, choice, params_only);
  }
  if (!ok) return false;
  report_replaced(now_ns, family, index, target.config.peer);
  owner_->on_policy_replaced(now_ns, index);
  return true;
}

void StackPolicies::report_replaced(i64 now_ns, policy::Family family, u32 flow, u32 peer) noexcept {
  shared_->trace.now_ns = now_ns;
  Event event{};
  event.kind = Event::Kind::policy_replaced;
  event.flow = flow;
  event.peer = peer;
  event.value = static_cast<u64>(family);
  shared_->trace.emit(event);
}

bool StackPolicies::change_path(i64 now_ns, u32 index, PolicyChoice choice, bool params_only) noexcept {
  PathSet& paths = (*peers_)[index].paths();
  if (params_only) return static_cast<void>(paths.policy().set_params(choice)), true;
  if (!paths.replace(now_ns, choice)) return false;
  report_replaced(now_ns, policy::Family::path, kNone, index);
  return true;
}

bool StackPolicies::set(i64 now_ns, policy::Family family, u32 index, PolicyChoice choice, bool params_only) noexcept {
  if (!owner_->open_for_policy(now_ns, index)) return false;
  Flow* target = flows_->get(index);
  if (target == nullptr) return true;
  if (!change_flow(now_ns, family, index, choice, params_only)) return false;
  // Changing parameters does not count as choosing a policy: unless the flow has a choice of its own, a later default
  // still replaces its policy.
  if (params_only && !has_own(family, *target)) return true;
  if (family == policy::Family::window) target->config.window = choice;
  if (family == policy::Family::loss) target->config.loss = choice;
  if (family == policy::Family::path) target->peer->own_path_policy(choice);
  if (family == policy::Family::credit) {
    target->config.credit = choice;
    target->config.own_credit = true;
  }
  return true;
}

bool StackPolicies::set_default(i64 now_ns, policy::Family family, PolicyChoice choice, bool params_only) noexcept {
  StackConfig& config = shared_->config;
  PolicyChoice& of_all = family == policy::Family::window ? config.window
                         : family == policy::Family::path ? config.path
                         : family == policy::Family::loss ? config.loss
                                                          : config.credit;
  const PolicyChoice before = std::exchange(of_all, choice);
  // If only the parameters of the default change, flows and peers whose policy or parameters differ from the old
  // default are skipped.
  const auto passed_by = [&](PolicyChoice now) { return params_only && !same(family, now, before); };
  bool ok = true;
  if (family == policy::Family::path) {
    for (u32 index = 0; index < peers_->size(); ++index) {
      const Peer* each = peers_->get(index);
      if (each == nullptr || each->config().path || passed_by((*peers_)[index].paths().policy().choice())) continue;
      ok = change_path(now_ns, index, choice, params_only) && ok;
    }
    return ok;
  }
  for (u32 index = 0; index < flows_->size(); ++index) {
    if (flows_->get(index) == nullptr || has_own(family, (*flows_)[index]) || passed_by(in_force(family, index)))
      continue;
    ok = change_flow(now_ns, family, index, choice, params_only) && ok;
  }
  return ok;
}

PolicyChoice StackPolicies::in_force(policy::Family family, u32 index) const noexcept {
  Flow* target = flows_->get(index);
  if (target == nullptr) return {};
  switch (family) {
    case policy::Family::window:
      return target->tx.window().choice();
    case policy::Family::loss:
      return target->tx.loss().choice();
    case policy::Family::path:
      return target->peer->paths().policy().choice();
    case policy::Family::credit:
      break;
  }
  return target->rx.credit() == nullptr ? PolicyChoice{} : target->rx.credit()->choice();
}

void StackPolicies::list_in_use(std::vector<PolicyChoice>* out) const {
  const StackConfig& config = shared_->config;
  out->insert(out->end(), {config.window, config.path, config.loss, config.credit});
  for (u32 index = 0; index < peers_->size(); ++index) {
    Peer* each = peers_->get(index);
    if (each != nullptr) out->insert(out->end(), {each->config().path, each->paths().policy().choice()});
  }
  for (u32 index = 0; index < flows_->size(); ++index) {
    if (flows_->get(index) == nullptr) continue;
    const FlowConfig& own = (*flows_)[index].config;
    out->insert(out->end(), {own.window, own.loss, own.credit});
    for (const auto family : {policy::Family::window, policy::Family::loss, policy::Family::credit}) {
      out->push_back(in_force(family, index));
    }
  }
  for (const auto& port : credit_ports_) out->push_back({port->descriptor, nullptr});
}

}  // namespace weft::core
