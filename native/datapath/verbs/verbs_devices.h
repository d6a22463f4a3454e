// Which RDMA ports the knobs name, the GID each is used with, and the transports it can do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/device.h"
#include "native/datapath/settings.h"
#include "native/datapath/verbs/verbs_port.h"

namespace weft::datapath {

// Whether libibverbs and an RDMA port are there. False with one line of `error` that says what to do.
bool probe_rdma(const Settings& settings, std::string* error);

// After probe_rdma. Opens devices to ask them and closes them again. False with one line of `error` that says what to
// do. `mode`: what all of them can do, best first or as the knob says.
bool find_rdma_devices(const Settings& settings, std::vector<DeviceState>* out, VerbsMode* mode, std::string* error);

// Whether so many engines may register their slots at once. A limit on locked memory would else show when the first
// peer comes, too late for another datapath.
bool memory_suffices(const std::vector<DeviceState>& devices, const VerbsOptions& options, std::int64_t engines,
                     std::string* error);

}  // namespace weft::datapath
