// The closing state machine of a flow: open, closing, closed. While closing, close packets are repeated until one is
// confirmed or a time limit is reached.
#pragma once

#include <algorithm>

#include "native/core/status.h"
#include "native/core/types.h"

namespace weft::core {

class Closer {
 public:
  enum class State : u8 { open, closing, closed };
  State state() const noexcept { return state_; }
  Status reason() const noexcept { return reason_; }

  // Starts closing. Gives up after `patience_ns`: a peer that hears nothing for this long considers this end dead
  // anyway.
  void close(Status reason, i64 now_ns, i64 patience_ns) noexcept {
    if (state_ != State::open) return;
    give_up_ns_ = now_ns + patience_ns;
    state_ = State::closing;
    reason_ = reason;
    next_ns_ = now_ns;
  }
  // The peer has closed the flow: this end sends nothing more than the confirmation of the close packet.
  void on_peer_close() noexcept { state_ = State::closed; }
  void on_confirm() noexcept {
    if (state_ == State::closing) state_ = State::closed;
  }
  // True when a close packet is due now.
  bool poll(i64 now_ns, i64 rto_ns, i64 interval_ns_max) noexcept {
    if (state_ != State::closing || now_ns < next_ns_) return false;
    if (now_ns >= give_up_ns_) {
      state_ = State::closed;
      return false;
    }
    next_ns_ = now_ns + (rto_ns > interval_ns_max >> tries_ ? interval_ns_max : rto_ns << tries_);
    // After kPatientTries tries, the interval is at most a quarter of `interval_ns_max`, so that one close packet gets
    // through even a network that loses most packets.
    if (tries_ >= kPatientTries) next_ns_ = std::min(next_ns_, now_ns + interval_ns_max / 4);
    if (tries_ < 20) ++tries_;
    return true;
  }
  i64 poll_timeout() const noexcept { return state_ == State::closing ? next_ns_ : kNever; }

 private:
  static constexpr u32 kPatientTries = 6;
  State state_ = State::open;
  Status reason_ = Status::ok;
  u32 tries_ = 0;
  i64 next_ns_ = kNever;
  i64 give_up_ns_ = kNever;
};

}  // namespace weft::core
