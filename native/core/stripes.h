// Computes which part of a message (stripe) each flow of a connection carries. Both ends compute it from the message's
// number and size and the number of flows.
//
// Short messages all go over the home flow, so that they keep one engine busy instead of all in turn. Long ones are
// striped over flows that change from message to message. A receiver posts receives before it knows how long messages
// are, and a flow must know whether it waits for something. So the home flow takes part in every message: if it
// carries no stripe of a long one, it carries an empty segment.
#pragma once

#include "native/core/types.h"

namespace weft::core {

// Smallest stripe of a striped message: smaller ones would cost more in control packets than they gain by being sent in
// parallel.
inline constexpr u64 kStripeBytesMin = 128 * 1024;
inline constexpr u32 kHomeFlow = 0;
inline constexpr u64 kHomeBytesMax = 64 * 1024;  // longer messages are striped; eager messages are never longer

struct Range {
  u64 begin = 0;
  u64 end = 0;
  u64 bytes() const noexcept { return end - begin; }
};

// Number of stripes of the message: at least one, even if it is empty, and more for longer messages.
constexpr u32 stripe_count(u64 message_bytes, u32 flows) noexcept {
  const u64 wanted = message_bytes / kStripeBytesMin;
  return wanted <= 1 ? 1 : wanted >= flows ? flows : static_cast<u32>(wanted);
}

// Index of the stripe that the flow carries, provided that the message has that many stripes. The first stripe of the
// next long message is on the next flow.
constexpr u32 turn_of(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  if (message_bytes <= kHomeBytesMax) return (flow + flows - kHomeFlow) % flows;
  return static_cast<u32>((flow + flows - message % flows) % flows);
}

// Whether flow `flow` carries a stripe of the message.
constexpr bool has_stripe(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  return turn_of(message, message_bytes, flow, flows) < stripe_count(message_bytes, flows);
}

// Whether flow `flow` carries a stripe of the message or, as its home flow, an empty segment.
constexpr bool takes_part(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  return flow == kHomeFlow || has_stripe(message, message_bytes, flow, flows);
}

// Number of flows that take part in the message.
constexpr u32 part_count(u64 message, u64 message_bytes, u32 flows) noexcept {
  const u32 stripes = stripe_count(message_bytes, flows);
  return has_stripe(message, message_bytes, kHomeFlow, flows) ? stripes : stripes + 1;
}

// The bytes of the message that the flow carries; empty if it has no stripe or the message is empty.
constexpr Range stripe_of(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  if (flows == 1) return {0, message_bytes};  // saves the divisions, which every segment would need
  const u64 parts = stripe_count(message_bytes, flows);
  const u64 turn = turn_of(message, message_bytes, flow, flows);
  if (turn >= parts) return {0, 0};
  // Stripes begin at multiples of a page, so that copies are aligned. Pages are distributed evenly, so that no stripe
  // is empty.
  const u64 pages = message_bytes / 4096;
  return {pages * turn / parts * 4096, turn + 1 == parts ? message_bytes : pages * (turn + 1) / parts * 4096};
}

// Number of bounce buffers (stages) for a message of this size, whichever flows carry its stripes: one for each stripe
// and, if the home flow may carry none of them, one for the home flow: a message that is shorter than its receive may
// come over the home flow alone.
constexpr u32 stage_count(u64 message_bytes, u32 flows) noexcept {
  const u32 stripes = stripe_count(message_bytes, flows);
  return message_bytes <= kHomeBytesMax || stripes == flows ? stripes : stripes + 1;
}

// Index of the stage of a flow that takes part in the message.
constexpr u32 stage_of(u64 message, u64 message_bytes, u32 flow, u32 flows) noexcept {
  const u32 turn = turn_of(message, message_bytes, flow, flows), stripes = stripe_count(message_bytes, flows);
  return turn < stripes ? turn : stripes;
}

// The flow that uses the stage.
constexpr u32 flow_of_stage(u64 message, u64 message_bytes, u32 stage, u32 flows) noexcept {
  if (message_bytes <= kHomeBytesMax || stage >= stripe_count(message_bytes, flows)) return kHomeFlow;
  return static_cast<u32>((message + stage) % flows);
}

}  // namespace weft::core
