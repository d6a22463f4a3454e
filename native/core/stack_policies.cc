// Policies of live flows and peers: put in place, replaced and given other parameters between two bursts.
// What is in flight stays in flight: a policy is told where things stand and decides from there.
#include "native/core/stack.h"

namespace weft::core {

// Flows of one credit policy share its port record; a record that no flow uses any more is forgotten.
CreditPort* Stack::credit_port(PolicyChoice choice) {
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

bool Stack::replace_window(i64 now_ns, u32 index, PolicyChoice choice) noexcept {
  Flow* target = flow(index);
  if (target == nullptr || !target->tx.window().replace(choice, now_ns)) return target == nullptr;
  refresh(now_ns, index);
  return true;
}

bool Stack::replace_loss(i64 now_ns, u32 index, PolicyChoice choice) noexcept {
  Flow* target = flow(index);
  if (target == nullptr || !target->tx.loss().replace(choice)) return target == nullptr;
  refresh(now_ns, index);
  return true;
}

bool Stack::replace_credit(i64 now_ns, u32 index, PolicyChoice choice) noexcept {
  Flow* target = flow(index);
  if (target == nullptr) return true;
  try {
    if (!target->rx.set_credit(choice, credit_port(choice))) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  refresh(now_ns, index);
  return true;
}

bool Stack::replace_path(i64 now_ns, u32 index, PolicyChoice choice) noexcept {
  Peer* target = peer(index);
  return target == nullptr || target->paths().replace(now_ns, choice);
}

bool Stack::set_params(policy::Family family, u32 index, PolicyChoice choice) noexcept {
  if (family == policy::Family::path) {
    Peer* target = peer(index);
    return target != nullptr && target->paths().policy().set_params(choice);
  }
  Flow* target = flow(index);
  if (target == nullptr) return false;
  if (family == policy::Family::window) return target->tx.window().set_params(choice);
  if (family == policy::Family::loss) return target->tx.loss().set_params(choice);
  return target->rx.credit() != nullptr && target->rx.credit()->set_params(choice);
}

const policy::Descriptor* Stack::in_force(policy::Family family, u32 index) noexcept {
  if (family == policy::Family::path) {
    Peer* target = peer(index);
    return target == nullptr ? nullptr : &target->paths().policy().descriptor();
  }
  Flow* target = flow(index);
  if (target == nullptr) return nullptr;
  if (family == policy::Family::window) return &target->tx.window().descriptor();
  if (family == policy::Family::loss) return &target->tx.loss().descriptor();
  return target->rx.credit() == nullptr ? nullptr : &target->rx.credit()->descriptor();
}

}  // namespace weft::core
