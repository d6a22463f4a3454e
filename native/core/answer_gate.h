// Limits what is sent to an unauthenticated peer until it has answered something that was sent to it: no data, and at
// most three times the bytes that came from it (RFC 9000, section 8.1). Otherwise an attacker could give a victim's
// address as its own and, with a few bytes, make this end send many to the victim (an amplification attack).
#pragma once

#include "native/core/types.h"

namespace weft::core {

class AnswerGate {
 public:
  static constexpr i64 kBytesPerByte = 3;

  // `open_bytes`: size of the peer's request to open a connection. Negative: the peer is authenticated, or this end
  // sent the request, and nothing is limited.
  explicit AnswerGate(i64 open_bytes) noexcept
      : left_bytes_(open_bytes < 0 ? 0 : kBytesPerByte * open_bytes), closed_(open_bytes >= 0) {}

  bool is_closed() const noexcept { return closed_; }
  void on_arrived(i64 bytes) noexcept {
    if (closed_) left_bytes_ += kBytesPerByte * bytes;
  }
  void on_answer() noexcept { closed_ = false; }
  // Whether a datagram may be sent; if so, it counts as sent.
  bool admits(i64 bytes) noexcept {
    if (!closed_) return true;
    if (bytes > left_bytes_) return false;
    left_bytes_ -= bytes;
    return true;
  }

 private:
  i64 left_bytes_;
  bool closed_;
};

}  // namespace weft::core
