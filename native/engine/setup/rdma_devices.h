// Which RDMA ports the knobs name, the GID each is used with and the transports it can do.
// Opens devices to ask them and closes them again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/verbs/verbs_port.h"
#include "native/engine/setup/devices.h"

namespace weft::engine {

// False with one line of `error` that says what to do. `mode`: what all of them can do, best first or as the knob says.
bool find_rdma_devices(const Knobs& knobs, std::vector<DeviceState>* out, datapath::VerbsMode* mode,
                       std::string* error);

// Whether so many engines may register their slots at once. A limit on locked memory would else show when the first
// peer comes, too late for another datapath.
bool memory_suffices(const std::vector<DeviceState>& devices, const datapath::VerbsOptions& options,
                     std::int64_t engines, std::string* error);

}  // namespace weft::engine
