// Everything that the core reports. The owner polls the events that it must act on; sinks (trace.h) see all of them.
#pragma once

#include <vector>

#include "native/core/status.h"
#include "native/core/types.h"

namespace weft::core {

struct Event {
  enum class Kind : u8 {
    send_done,      // message, cookie: the send's; all bytes of this flow's stripe are in the peer's memory
    stripe_placed,  // message; cookie: the receive's ticket; value: size of the whole message; key: the window to close
                    // before the receive completes and before anything more is transmitted (P-1)
    window_unused,  // key: a window that the peer has not used and will not use
    flow_failed,    // status: the reason; every send and receive of the flow is void
    peer_closed,    // value: number of eager messages held without a receive, which can still be received. status: the
                    // reason. receive_waits: a posted receive waits for a message that can't arrive any more
    flow_closed,    // both sides are done with the flow: release_flow() may reuse its index
    path_down,      // peer, path; value: 1 if only long datagrams are lost on it, 0 if nothing comes back
    path_up,        // peer, path
    peer_dead,      // peer, status
    flow_stuck,     // flow, peer: no progress for the time after which a peer counts as silent, although the peer is
                    // heard; repeated every quarter of that time. Stack::give_up_flow ends the flow
    segment_size,   // peer; value: largest datagram size from now on
    policy_failed,  // value: policy::Family; `fixed` replaced the policy. Details: Shared::failure_of
    peer_quiet,  // peer: a flow waits for it, nothing was heard for a quarter of the silence limit, and keepalives went
                 // unanswered; repeated. The owner decides what to do (StackConfig::owner_judges)
    peer_released,  // peer: a dead peer's last flow is gone; the owner must return its index by release_peer()
    // The following are for sinks only; the owner does not get them.
    message_posted,   // flow, message, receives; value: bytes of the whole message, or the capacity of a receive
    message_started,  // flow, message, receives; value: bytes of the whole message. Its first segment left or arrived
    message_failed,   // flow, message, receives, status: it was posted, and this flow's part will not complete
    path_probed,      // peer, path: a probe leaves on a path that is down
    peer_connected,   // peer; value: number of paths
    loss,             // flow, peer, path; value: segments that one verdict of the loss policy declared lost
    timeout,          // flow, peer, path: the path's timeout expired with segments in flight
    policy_replaced,  // flow or peer; value: policy::Family. The owner chose another policy
  };
  static constexpr unsigned kKinds = static_cast<unsigned>(Kind::policy_replaced) + 1;
  Kind kind;
  u8 path = 0;
  bool receive_waits = false;
  bool receives = false;  // of a message: this end receives it
  Status status = Status::ok;
  u32 flow = kNone;
  u32 peer = kNone;
  u32 key = 0;
  void* cookie = nullptr;
  u64 value = 0;
  u64 message = 0;  // of events about a message: its number within the connection
};

// First in, first out. The buffer keeps the largest capacity that was needed.
class EventQueue {
 public:
  void push(const Event& event) { events_.push_back(event); }
  bool poll(Event* out) noexcept {
    if (head_ == events_.size()) return false;
    *out = events_[head_++];
    if (head_ == events_.size()) {
      events_.clear();
      head_ = 0;
    }
    return true;
  }
  bool empty() const noexcept { return head_ == events_.size(); }

 private:
  std::vector<Event> events_;
  std::size_t head_ = 0;
};

}  // namespace weft::core
