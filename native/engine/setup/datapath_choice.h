// Chooses the datapath of the process from the table of datapaths: the knob `datapath`, and what this host can do.
#pragma once

#include <memory>
#include <string>

#include "native/datapath/table.h"
#include "native/engine/knobs.h"

namespace weft::engine {

// Decided once per process; every engine uses it.
struct DatapathChoice {
  const datapath::DatapathEntry* entry = nullptr;
  datapath::Found found;
};

// Finds the devices and decides how so many engines reach them. False with `error` when there is no way that the knobs
// admit.
bool choose_datapath(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice, std::string* error);

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine);

}  // namespace weft::engine
