// Computes which part of a message (stripe) each flow of a connection carries: a pure function of (message, size,
// flows) that both ends compute independently, without exchanging anything.
#pragma once

#include "native/core/types.h"

namespace weft::core {

// A smaller stripe would cost more in control packets than it gains from parallel transmission.
inline constexpr u64 kStripeBytesMin = 128 * 1024;

struct Range {
  u64 begin = 0;
  u64 end = 0;
  u64 bytes() const noexcept { return end - begin; }
};

// Number of flows that take part: at least one (a zero-byte message is a message), and more for longer messages.
constexpr u32 stripe_count(u64 message_bytes, u32 flows) noexcept {
  const u64 wanted = message_bytes / kStripeBytesMin;
  return wanted <= 1 ? 1 : wanted >= flows ? flows : static_cast<u32>(wanted);
}

// Index of the stripe that the flow carries if there are enough stripes; successive messages start at successive flows.
constexpr u32 turn_of(u64 message, u32 flow, u32 flows) noexcept {
  return static_cast<u32>((flow + flows - message % flows) % flows);
}

// Whether flow `flow` carries a part of the message.
constexpr bool takes_part(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  return turn_of(message, flow, flows) < stripe_count(message_bytes, flows);
}

// The bytes that the flow carries; empty if it takes no part or the message is empty.
constexpr Range stripe_of(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  const u64 parts = stripe_count(message_bytes, flows);
  const u64 turn = turn_of(message, flow, flows);
  if (turn >= parts) return {0, 0};
  // Stripes begin on page boundaries, so that copies stay aligned. Whole pages are distributed evenly, so that every
  // flow that takes part has some bytes.
  const u64 pages = message_bytes / 4096;
  return {pages * turn / parts * 4096, turn + 1 == parts ? message_bytes : pages * (turn + 1) / parts * 4096};
}

}  // namespace weft::core
