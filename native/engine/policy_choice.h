// Which policy libraries the knobs name, and where compiled ones lie beside this library.
// Loads them once a process; keeps them while the runtime lives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/core/types.h"
#include "native/engine/knobs.h"
#include "native/policy/loader.h"

namespace weft::engine {

struct PolicySet {
  std::vector<std::shared_ptr<const policy::Library>> libraries;
  core::PolicyChoice window, path, loss, credit;
};

// Where compiled policies are looked for: the knob's directory, then next to the library this code is part of.
std::vector<std::string> policy_directories(const Knobs& knobs);

bool choose_policies(const Knobs& knobs, PolicySet* out, std::string* error);

}  // namespace weft::engine
