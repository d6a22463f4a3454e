// Writes the state of an engine's peers and flows to a telemetry page: outstanding work, and since when.
#pragma once

#include <cstdint>

#include "native/core/stack.h"
#include "native/engine/telemetry_page.h"

namespace weft::engine {

// Must be called on the engine's thread.
void write_states(core::Stack* stack, TelemetryPage* page) noexcept;

}  // namespace weft::engine
