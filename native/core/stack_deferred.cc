// Defers flows, and opens them at their first use. A deferred flow to a peer that is dead has ended, and is never
// opened.
#include <new>

#include "native/core/stack.h"

namespace weft::core {
namespace {

// Whether a packet of this type may be the first one of a flow: it answers nothing that the flow has sent.
bool may_begin(wire::Type type) noexcept {
  return type == wire::Type::data || type == wire::Type::advert || type == wire::Type::demand ||
         type == wire::Type::close;
}

}  // namespace

void Stack::defer_flow(i64 now_ns, u32 index, u32 peer_index) noexcept {
  deferred_.add(index, peer_index);
  peers_[peer_index].on_flow_deferred();
  if (peers_[peer_index].dead()) return report_ended(index, Event::Kind::peer_closed, Status::peer_dead);
  measure_paths(now_ns, peer_index);
}

Flow* Stack::open_deferred(i64 now_ns, u32 index) noexcept {
  FlowConfig config;
  if (!deferred_.has(index) || !deferred_.source()->config_of(index, &config)) return nullptr;
  return open_as(now_ns, index, config);
}

Flow* Stack::open_deferred_for(i64 now_ns, const wire::Common& packet) noexcept {
  FlowConfig config;
  if (!deferred_.has(packet.flow) || !deferred_.source()->config_of(packet.flow, &config)) return nullptr;
  if (config.local_token != packet.token || !may_begin(packet.type)) return nullptr;
  return open_as(now_ns, packet.flow, config);
}

// Opens a deferred flow. Null if its peer is dead or memory ran out.
Flow* Stack::open_as(i64 now_ns, u32 index, const FlowConfig& config) noexcept {
  Peer* owner = peer(deferred_.peer_of(index));
  if (owner == nullptr || owner->dead()) return nullptr;
  try {
    make_flow(index, config, owner);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  deferred_.remove(index);
  owner->on_deferred_opened(flow(index));
  deferred_.source()->on_flow_opened(index, flow(index));
  refresh(now_ns, index);
  return flow(index);
}

void Stack::report_ended(u32 index, Event::Kind kind, Status reason) noexcept {
  Event event{};
  event.kind = kind;
  event.flow = index;
  event.status = reason;
  shared_.report(event);
}

// Ends the deferred flows of a peer that is dead.
void Stack::end_deferred(u32 peer_index, Event::Kind kind, Status reason) noexcept {
  deferred_.each_of(peer_index, [&](u32 index) { report_ended(index, kind, reason); });
}

void Stack::release_deferred(u32 index) noexcept {
  const u32 owner_index = deferred_.peer_of(index);
  deferred_.remove(index);
  Peer* owner = peer(owner_index);
  if (owner == nullptr) return;
  owner->on_deferred_released();
  if (owner->flows() == 0 && owner->dead()) on_peer_unused(owner_index);
}

}  // namespace weft::core
