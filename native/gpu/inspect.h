// What the driver says of an address and of a stream that a caller names: a mistake is found here, before anything is
// posted. Believes nothing that an array says of itself but its address and length.
#pragma once

#include <string>

#include "native/gpu/layout.h"

namespace weft::gpu {

// The device that all of the layout lies on; -1 with `error`, which says which piece does not and what to do. A layout
// without a byte lies on device 0.
int device_of(const Driver& driver, const Layout& layout, std::string* error);

// Whether work of this stream can come before work of `context`, which is current. False with `error`.
bool stream_belongs(const Driver& driver, Stream stream, Context context, std::string* error);

}  // namespace weft::gpu
