// Writes the states of an engine's peers and flows to a telemetry page, such as how many sends and receives are
// outstanding.
#pragma once

#include <cstdint>

#include "native/core/stack.h"
#include "native/engine/telemetry_page.h"

namespace weft::engine {

// Gives a flow that was opened a row for its counters, if one is free.
void take_row(TelemetryPage* page, std::uint32_t engine, std::uint64_t connection, core::Flow* flow) noexcept;
// Writes the states of the stack's peers, and of its flows that have changed since the last call. Called on the
// engine's thread, because other threads may not read the stack.
void write_states(core::Stack* stack, TelemetryPage* page) noexcept;

}  // namespace weft::engine
