// Checks addresses and streams named by a caller against what the driver knows, so that mistakes are found before
// anything is posted. Of an array, only its address and length are used.
#pragma once

#include <string>

#include "native/gpu/layout.h"

namespace weft::gpu {

// The device that holds the whole layout; -1 with `error` set, which names the wrong piece and what to do. An empty
// layout counts as memory of device 0.
int device_of(const Driver& driver, const Layout& layout, std::string* error);

// Whether the stream belongs to `context`, so that its work can be ordered before work of that context. `context` must
// be current. On failure returns false with `error` set.
bool stream_belongs(const Driver& driver, Stream stream, Context context, std::string* error);

}  // namespace weft::gpu
