// Writes what a telemetry page says of an engine's peers and flows beside their counters: what waits, and since when.
#pragma once

#include <cstdint>

#include "native/core/stack.h"
#include "native/engine/telemetry_page.h"

namespace weft::engine {

// On the engine's thread.
void write_states(core::Stack* stack, TelemetryPage* page) noexcept;

}  // namespace weft::engine
