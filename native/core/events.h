// The events that the core reports. The owner of a stack polls those that it must act on; trace sinks (trace.h) get all
// events.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "native/core/status.h"
#include "native/core/types.h"

namespace weft::core {

struct Event {
  enum class Kind : u8 {
    // All bytes of this flow's stripe of a send are in the peer's memory. Fields: message; cookie (that of the send).
    send_done,
    // This flow's stripe of a receive is complete. The memory window `key` must be closed before the receive completes
    // and before the flow transmits again (P-1). Fields: message; cookie (the receive's ticket); value (bytes of the
    // whole message); key.
    stripe_placed,
    // The peer has not used the memory window `key` and will not use it any more.
    window_unused,
    // The flow failed, and with it all of its sends and receives. Fields: status (the reason).
    flow_failed,
    // The peer closed the flow. Fields: status (the reason); value (number of eager messages that can still be
    // received); receive_waits (true if a posted receive waits for a message that cannot arrive any more).
    peer_closed,
    // Both ends have closed the flow; release_flow() may be called, after which the flow's index is reused.
    flow_closed,
    // A path became unusable. Fields: peer; path; value (1: it loses only long datagrams, 0: it loses all).
    path_down,
    path_up,    // A path is usable again. Fields: peer; path.
    peer_dead,  // The peer is dead. Fields: peer; status (the reason).
    // The flow made no progress for the silence limit (StackConfig::peer_silence_ns), although its peer is heard. The
    // event is repeated every quarter of that limit. Stack::give_up_flow() ends the flow. Fields: flow; peer.
    flow_stuck,
    segment_size,   // The largest datagram to a peer has a new size. Fields: peer; value (the size).
    policy_failed,  // The policy `fixed` replaced one that failed (Shared::failure_of). Fields: value (policy::Family).
    // A flow waits for a peer that was not heard for a quarter of the silence limit and answered no keepalives. The
    // event is repeated. The owner decides what to do (StackConfig::external_failure_detector). Fields: peer.
    peer_quiet,
    // The last flow of a dead peer is gone; the owner must call release_peer(). Fields: peer.
    peer_released,

    // Only trace sinks get the following events; the owner of the stack does not.

    // A send or receive was posted. Fields: flow; message; receives; value (bytes of the message or of the buffer).
    message_posted,
    // The first segment of a message was sent or arrived. Fields: flow; message; receives; value (message bytes).
    message_started,
    // This flow's stripe of a posted message will not complete. Fields: flow; message; receives; status (the reason).
    message_failed,
    // Segments of a message were sent for the first time, or again. Fields: flow; path; message; value (their number).
    segments_sent,
    segments_resent,
    path_probed,     // A probe was sent on a silent path. Fields: peer; path.
    peer_connected,  // A peer was added. Fields: peer; value (number of paths).
    loss,            // The loss policy declared segments lost. Fields: flow; peer; path; value (number of segments).
    timeout,         // A path's timeout expired with segments in flight. Fields: flow; peer; path.
    // The owner replaced a policy by another one. Fields: flow or peer; value (policy::Family).
    policy_replaced,
  };
  static constexpr unsigned kKinds = static_cast<unsigned>(Kind::policy_replaced) + 1;
  Kind kind;
  u8 path = 0;
  bool receive_waits = false;
  bool receives = false;  // events about a message: true if this end receives it
  Status status = Status::ok;
  u32 flow = kNone;
  u32 peer = kNone;
  u32 key = 0;
  void* cookie = nullptr;
  u64 value = 0;
  u64 message = 0;  // events about a message: its number within the connection
};

// A FIFO queue of events. Its buffer grows when it is half full and never shrinks. So it soon needs no more
// allocations, and if memory is lacking, it still has room for as many events again as it ever held at once.
class EventQueue {
 public:
  void push(const Event& event) {
    if (events_.size() >= events_.capacity() / 2) grow();
    events_.push_back(event);
  }
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
  static constexpr std::size_t kEventsMin = 16;

  void grow() noexcept {
    try {
      events_.reserve(std::max(2 * events_.capacity(), kEventsMin));
    } catch (const std::bad_alloc&) {  // the queue uses its free half; the next push() tries again
    }
  }

  std::vector<Event> events_;
  std::size_t head_ = 0;
};

}  // namespace weft::core
