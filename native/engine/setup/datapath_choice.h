// Chooses the datapath of the process, by WEFT_DATAPATH and by what this host supports.
#pragma once

#include <memory>
#include <string>

#include "native/datapath/table.h"
#include "native/engine/knobs.h"

namespace weft::engine {

// The chosen datapath and the devices found. All engines of a runtime use the same choice.
struct DatapathChoice {
  const datapath::DatapathEntry* entry = nullptr;
  datapath::Found found;
};

// Finds the devices and chooses a datapath for this number of engines. Returns false and sets `error` if none of the
// allowed datapaths works.
bool choose_datapath(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice, std::string* error);

// Whether the knob names a datapath for which one engine is best.
bool wants_one_engine(const Knobs& knobs) noexcept;

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine);

}  // namespace weft::engine
