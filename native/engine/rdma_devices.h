// Which RDMA ports the knobs name, the GID each is used with and the transports it can do.
// Opens devices to ask them and closes them again.
#pragma once

#include <string>
#include <vector>

#include "native/datapath/verbs/queue_pair.h"
#include "native/engine/devices.h"

namespace weft::engine {

// False with one line of `error` that says what to do. `mode`: what all of them can do, best first or as the knob says.
bool find_rdma_devices(const Knobs& knobs, std::vector<DeviceState>* out, datapath::VerbsMode* mode,
                       std::string* error);

}  // namespace weft::engine
