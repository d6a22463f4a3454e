// Copies the states of peers, and of flows that have changed, to the telemetry page, without system calls, locks or
// allocations.
#include "native/engine/page_states.h"

namespace weft::engine {
namespace {

std::int64_t phase_of(const core::Flow& flow) noexcept {
  if (flow.closer.state() == core::Closer::State::closing) return 2;
  if (flow.closer.state() == core::Closer::State::closed) return 3;
  return flow.failed ? 1 : 0;
}

void write_flow(core::Flow* flow, TelemetryPage* page) noexcept {
  telemetry::FlowPageRow* row = page->flow_row(flow->config.counters);
  if (row == nullptr) return;
  flow->tx.refresh_gauges();
  row->phase.set(phase_of(*flow));
  row->sends.set(static_cast<std::int64_t>(flow->tx.outstanding()));
  row->unsent_bytes.set(static_cast<std::int64_t>(flow->tx.unsent_bytes()));
  row->receives.set(static_cast<std::int64_t>(flow->rx.outstanding()));
  row->progress_ns.set(flow->last_progress_ns());
  row->active_ns.set(flow->active_ns);
}

void write_peer(const core::Peer& peer, TelemetryPage* page) noexcept {
  telemetry::PeerPageRow* row = page->peer_row(peer.config().counters);
  if (row == nullptr) return;
  row->dead.set(peer.dead() ? 1 : 0);
  row->waited_for.set(peer.waited_for() ? 1 : 0);
  row->heard_ns.set(peer.heard_ns());
}

}  // namespace

void take_row(TelemetryPage* page, std::uint32_t engine, std::uint64_t connection, core::Flow* flow) noexcept {
  telemetry::FlowPageRow* const row = page->take_flow();
  if (row == nullptr) {
    page->process().counters.rows_refused.add_shared(1);
    return;
  }
  row->connection.set(static_cast<std::int64_t>(connection));
  row->engine.set(engine);
  row->peer.set(page->number_of(page->peer_row(flow->peer->config().counters)));
  row->stripe.set(flow->config.stripe);
  row->stripes.set(flow->config.stripes);
  flow->count_in(&row->counters);
}

void write_states(core::Stack* stack, TelemetryPage* page) noexcept {
  stack->changed().take([&](std::uint32_t index) {
    if (core::Flow* flow = stack->flow(index)) write_flow(flow, page);
  });
  for (std::uint32_t i = 0; i < stack->peer_count(); ++i) {
    if (const core::Peer* peer = stack->peer(i)) write_peer(*peer, page);
  }
}

}  // namespace weft::engine
