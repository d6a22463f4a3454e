// Computes which part of a message (stripe) each flow of a connection carries. Both ends compute it from the message's
// number and size and the number of flows.
#pragma once

#include "native/core/types.h"

namespace weft::core {

// Smallest stripe of a striped message: smaller ones would cost more in control packets than they gain by being sent in
// parallel.
inline constexpr u64 kStripeBytesMin = 128 * 1024;

struct Range {
  u64 begin = 0;
  u64 end = 0;
  u64 bytes() const noexcept { return end - begin; }
};

// Number of flows that carry a stripe of the message: at least one, even if it is empty, and more for longer messages.
constexpr u32 stripe_count(u64 message_bytes, u32 flows) noexcept {
  const u64 wanted = message_bytes / kStripeBytesMin;
  return wanted <= 1 ? 1 : wanted >= flows ? flows : static_cast<u32>(wanted);
}

// Index of the stripe that the flow carries, provided that the message has that many stripes. The first stripe of the
// next message is on the next flow.
constexpr u32 turn_of(u64 message, u32 flow, u32 flows) noexcept {
  return static_cast<u32>((flow + flows - message % flows) % flows);
}

// Whether flow `flow` carries a stripe of the message.
constexpr bool takes_part(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  return turn_of(message, flow, flows) < stripe_count(message_bytes, flows);
}

// The bytes of the message that the flow carries; empty if it has no stripe or the message is empty.
constexpr Range stripe_of(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  const u64 parts = stripe_count(message_bytes, flows);
  const u64 turn = turn_of(message, flow, flows);
  if (turn >= parts) return {0, 0};
  // Stripes begin at multiples of a page, so that copies are aligned. Pages are distributed evenly, so that no stripe
  // is empty.
  const u64 pages = message_bytes / 4096;
  return {pages * turn / parts * 4096, turn + 1 == parts ? message_bytes : pages * (turn + 1) / parts * 4096};
}

}  // namespace weft::core
