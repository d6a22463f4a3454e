// What a policy was asked and what it answered, as an interface: recorders implement it, the core calls it when one is
// set. Keeps nothing; the pointers are good for the call only.
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
  const void* result = nullptr;      // as the policy left it, before the core corrects it
  const std::byte* paths = nullptr;  // path family: its records, each beginning with the PathHead it was given
  std::size_t path_count = 0;        // path and loss family: how many paths it has
  bool ok = true;                    // false: the hook failed, and `fixed` follows
};

class DecisionTap {
 public:
  virtual ~DecisionTap() = default;
  // On the engine's thread, between two segments: must not allocate, lock or wait.
  virtual void on_decision(const Decision& decision) noexcept = 0;
};

}  // namespace weft::core
