// Checks addresses and streams named by a caller against what the driver knows, so that mistakes are found before
// anything is posted. Of an array's own description only address and length are used.
#pragma once

#include <string>

#include "native/gpu/layout.h"

namespace weft::gpu {

// The device that holds the whole layout; -1 with `error`, which names the offending piece and what to do. An empty
// layout counts as on device 0.
int device_of(const Driver& driver, const Layout& layout, std::string* error);

// Whether work of this stream can be ordered before work of `context`, which must be current. False with `error`.
bool stream_belongs(const Driver& driver, Stream stream, Context context, std::string* error);

}  // namespace weft::gpu
