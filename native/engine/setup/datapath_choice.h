// Which datapath moves the datagrams of this process: the knob `datapath`, and what the host can do.
// Opens nothing that outlives the question.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/engine/setup/devices.h"

namespace weft::engine {

// What every engine of the process uses, decided once.
struct DatapathChoice {
  bool verbs = false;
  std::int32_t verbs_mode = 0;      // a VerbsMode
  std::uint32_t segment_bytes = 0;  // the largest of any device
  std::string summary = "udp";      // for the log: "udp", "verbs UC"
};

datapath::FaultRates fault_rates(const Knobs& knobs, std::uint32_t engine);

// Finds the devices and decides how so many engines reach them. False with `error` when there is no way as the knobs
// want it.
bool choose_datapath(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice,
                     std::vector<DeviceState>* devices, std::string* error);

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine);

}  // namespace weft::engine
