// One flow pair of a connection: its sending half, its receiving half and its life; plus where it waits in the stack.
#pragma once

#include "native/core/closer.h"
#include "native/core/flow_receiver.h"
#include "native/core/flow_sender.h"
#include "native/core/peer.h"

namespace weft::core {

struct Flow {
  Flow(Shared* shared, PolicyChoice credit, CreditPort* port, u32 index, const FlowConfig& flow_config, Peer* owner)
      : config(with_counters(flow_config, &own_counters)),
        peer(owner),
        tx(shared, index, config, owner->config(), &owner->paths()),
        rx(shared, credit, port, index, config, owner->config(), &owner->paths()) {}
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  FlowCells own_counters;  // where the owner gave none
  FlowConfig config;
  Peer* peer;
  FlowSender tx;
  FlowReceiver rx;
  Closer closer;
  i64 deficit_bytes = 0;
  i64 scheduled_ns = kNever;
  i64 active_ns = 0;            // last packet or post
  i64 idle_ns = kNever;         // when storage by path may be given back
  i64 judged_ns = 0;            // when it was last looked at for being stuck, and was
  i64 retry_ns = kNever;        // storage was used up with nothing in flight that could free it
  bool in_control = false;      // waits in the stack's control queue
  bool in_ready = false;        // ... in the queue of flows with new data
  bool in_resend = false;       // ... in the queue of flows with something to resend
  bool in_room_wait = false;    // ... in the queue of flows that were refused an eager block
  bool in_path_wait = false;    // ... at its peer, for room on a path
  bool waits = false;           // counted by the peer as waiting for it
  i64 confirm_ns = kNever;      // advertisements are confirmed by then, unless data has done it
  bool confirm_advert = false;  // an advertisement is to be confirmed
  bool confirm_close = false;
  bool failed = false;  // said so by an event
  bool closed_reported = false;
  bool peer_closed = false;  // the peer has closed or died: nothing comes any more, what is held may be received
  Status end_reason = Status::connection_closed;  // where `peer_closed`: what receives beyond what is held fail with

  // Their values now, gauges included.
  FlowCounters counters() noexcept {
    tx.refresh_gauges();
    return telemetry::values(*config.counters);
  }
  void prefetch(u8 path) const noexcept {
    if (path < peer->paths().count()) __builtin_prefetch(&peer->paths().path(path));
    tx.prefetch(path);
    rx.prefetch(path);
  }
  i64 last_progress_ns() const noexcept { return std::max(tx.progress_ns(), rx.progress_ns()); }
  // When it will have made no progress for so long, unless it does; kNever: it waits for nothing that the network owes.
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

}  // namespace weft::core
