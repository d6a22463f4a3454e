// Finds the RDMA ports that the knobs name, the GID to use with each, and the transports that they support.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/device.h"
#include "native/datapath/settings.h"
#include "native/datapath/verbs/verbs_port.h"

namespace weft::datapath {

// Whether libibverbs and an RDMA port exist. If not, returns false with one line in `error` that says what to do.
bool probe_rdma(const Settings& settings, std::string* error);

// Finds the devices, after probe_rdma() has succeeded; opens each one to query it and closes it again. `mode` is set to
// a transport that all devices support: the one that the knob names, or else the best one. On failure returns false
// with one line in `error` that says what to do.
bool find_rdma_devices(const Settings& settings, std::vector<DeviceState>* out, VerbsMode* mode, std::string* error);

// Whether `engines` engines can register the memory of their send and receive slots at the same time. Checked at the
// start, because otherwise a limit on locked memory would only show when the first peer connects, too late to choose
// another datapath.
bool memory_suffices(const std::vector<DeviceState>& devices, const VerbsOptions& options, std::int64_t engines,
                     std::string* error);

}  // namespace weft::datapath
