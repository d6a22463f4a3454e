// Interface for observing policy decisions: recorders implement it, and the core calls it if one is set. The pointers
// are valid only during the call.
#pragma once

#include <cstddef>

#include "native/core/types.h"

namespace weft::core {

struct Decision {
  policy::Family family = policy::Family::window;
  std::size_t hook = 0;
  u32 owner = 0;  // the flow; path family: the peer
  const policy::Descriptor* descriptor = nullptr;
  const void* params = nullptr;
  const void* event = nullptr;
  const void* result = nullptr;      // as the policy left it, before the core's corrections
  const std::byte* paths = nullptr;  // path family: its records, each starting with the PathHead it was given
  std::size_t path_count = 0;        // path and loss families: number of paths
  bool ok = true;                    // false: the hook failed, and `fixed` replaces the policy
};

class DecisionTap {
 public:
  virtual ~DecisionTap() = default;
  // Called on the engine's thread between two segments: must not allocate, lock or wait.
  virtual void on_decision(const Decision& decision) noexcept = 0;
};

}  // namespace weft::core
