// What the core tells its owner: completions, failures and changes worth a trace, in the order they happened.
#pragma once

#include <vector>

#include "native/core/status.h"
#include "native/core/types.h"

namespace weft::core {

struct Event {
  enum class Kind : u8 {
    send_done,      // cookie: the send's; every byte of this flow's stripe is in the peer's memory
    stripe_placed,  // cookie: the receive's ticket; value: bytes of the whole message; key: of the window to close
                    // before the receive completes and before anything more is transmitted (P-1)
    window_unused,  // key: of a window that nothing was or will be sent to
    flow_failed,    // status: why; every send and receive of the flow is void
    peer_closed,    // value: eager messages held that no receive was posted for; they can still be received.
                    // status: why nothing more comes; receive_waits: for what will never come
    flow_closed,    // both sides are done with the flow: its index may be used again
    path_down,      // peer, path; value: 1 where only long datagrams vanish on it, 0 where nothing comes back
    path_up,        // peer, path
    peer_dead,      // peer, status
    flow_stuck,  // flow, peer: no progress for the time after which a peer counts as silent, though this one is heard;
                 // said again every quarter of it while that lasts. To be ended by Stack::give_up_flow
    segment_size,   // peer; value: how long datagrams to it may be from now on
    policy_failed,  // value: policy::Family, of which Shared::failure_of knows more; `fixed` took over
    peer_quiet,  // peer: a flow waits for it, and after a quarter of the silence it answered no keepalive either; said
                 // again while it lasts. What that means is the owner's to judge (StackConfig::owner_judges)
    peer_released,  // peer: the last flow of a dead one has gone; the owner gives its index back by release_peer()
  };
  Kind kind;
  u8 path = 0;
  bool receive_waits = false;
  Status status = Status::ok;
  u32 flow = kNone;
  u32 peer = kNone;
  u32 key = 0;
  void* cookie = nullptr;
  u64 value = 0;
};

// First in, first out; grows to what was once needed and then stays.
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
