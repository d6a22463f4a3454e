// One flow of a connection: its sender, its receiver, its closing state and its flags and timers in the stack.
#pragma once

#include "native/core/closer.h"
#include "native/core/flow_receiver.h"
#include "native/core/flow_sender.h"
#include "native/core/peer.h"

namespace weft::core {

struct Flow {
  Flow(Shared* shared, PolicyChoice credit, CreditPort* port, u32 index, const FlowConfig& flow_config, Peer* owner)
      : index(index),
        config(with_counters(flow_config, &own_counters)),
        peer(owner),
        tx(shared, index, config, owner->config(), &owner->paths()),
        rx(shared, credit, port, index, config, owner->config(), &owner->paths()) {}
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  const u32 index;
  FlowLink link;           // position in the peer's list of flows
  FlowCells own_counters;  // the flow's counters if its configuration supplies none
  FlowConfig config;
  Peer* peer;
  FlowSender tx;
  FlowReceiver rx;
  Closer closer;
  i64 deficit_bytes = 0;
  i64 scheduled_ns = kNever;
  i64 active_ns = 0;            // time of the last packet, send or receive of this flow
  i64 idle_ns = kNever;         // time of the next check whether the flow is idle, which frees its per-path state
  i64 judged_ns = 0;            // when the flow was last found to be without progress
  i64 retry_ns = kNever;        // time of the next try to send after memory ran out, if nothing is in flight
  bool in_control = false;      // the flow is in the stack's control queue
  bool in_ready = false;        // the flow is in the queue of flows with new data
  bool in_resend = false;       // the flow is in the queue of flows with segments to resend
  bool in_room_wait = false;    // the flow is in the queue of flows that were refused an eager block
  bool in_path_wait = false;    // the flow is in its peer's queue of flows that wait for room on a path
  bool waits = false;           // the peer's number of waiting flows includes this flow
  i64 confirm_ns = kNever;      // time at which a packet confirms advertisements, unless sent data does so before
  bool confirm_advert = false;  // an advertisement must be confirmed by a separate packet
  bool confirm_close = false;
  bool failures_reported = false;  // trace sinks got message_failed for its incomplete receives
  bool failed = false;             // the event flow_failed has been emitted
  bool closed_reported = false;
  bool peer_closed = false;  // the peer closed or died; eager messages that arrived earlier can still be received
  Status end_reason = Status::connection_closed;  // if `peer_closed`: status of receives that get no eager message

  // Lets the flow count elsewhere. To be called when it has been opened, before it counts.
  void count_in(FlowCells* counters) noexcept {
    config.counters = counters;
    tx.count_in(counters);
    rx.count_in(counters);
  }
  // Returns the current counters, after updating the gauges.
  FlowCounters counters() noexcept {
    tx.refresh_gauges();
    return telemetry::values(*config.counters);
  }
  void prefetch() const noexcept {
    core::prefetch(peer, peer + 1);
    tx.prefetch();
    rx.prefetch();
  }
  void prefetch_records() const noexcept {
    peer->paths().prefetch();
    tx.prefetch_records();
    rx.prefetch_records();
  }
  void prefetch(u8 path) const noexcept {
    if (path >= peer->paths().count()) return;
    peer->paths().prefetch(path);
    tx.prefetch(path);
    rx.prefetch(path);
  }
  i64 last_progress_ns() const noexcept { return std::max(tx.progress_ns(), rx.progress_ns()); }
  // When the flow will count as stuck unless it makes progress; kNever: it does not wait for the network.
  i64 stuck_ns(i64 silence_ns) noexcept {
    const i64 since_ns = std::min(tx.stuck_since_ns(), rx.stuck_since_ns());
    if (since_ns == kNever) return kNever;
    return std::max({since_ns + silence_ns, peer->resumed_ns() + silence_ns, judged_ns + silence_ns / 4});
  }
  bool is_open() const noexcept { return closer.state() == Closer::State::open && !failed; }

 private:
  static FlowConfig with_counters(FlowConfig config, FlowCells* own) noexcept {
    if (config.counters == nullptr) config.counters = own;
    return config;
  }
};

inline void FlowList::add(Flow* flow) noexcept {
  flow->link = {last_, nullptr};
  (last_ == nullptr ? first_ : last_->link.next) = flow;
  last_ = flow;
}

inline void FlowList::remove(Flow* flow) noexcept {
  const FlowLink link = flow->link;
  (link.previous == nullptr ? first_ : link.previous->link.next) = link.next;
  (link.next == nullptr ? last_ : link.next->link.previous) = link.previous;
}

}  // namespace weft::core
