// Holds one policy's records and calls its hooks; puts `fixed` of the family in its place when a call goes wrong.
// Interprets no event and no result: its owner fills one and checks the other.
#pragma once

#include <cstddef>
#include <memory>

#include "native/core/decision_tap.h"
#include "native/core/types.h"

namespace weft::core {

class PolicySlot {
 public:
  PolicySlot(policy::Family family, PolicyChoice choice) noexcept;

  // Allocates zeroed records (`shared_count` of the shared kind). False when out of memory.
  bool open(std::size_t shared_count) noexcept;
  bool is_open() const noexcept { return open_; }
  // Uses one shared record that somebody else owns; a fallback goes back to a record of its own.
  void share(void* record, std::size_t bytes) noexcept {
    if (bytes >= descriptor_->shared_bytes) shared_ = record;
  }
  void close() noexcept;  // gives the records back; open() begins anew

  // False when the policy failed; the caller then decides with what fall_back() leaves. `tap` (or null) is told.
  bool call(std::size_t hook, const void* event, void* result, DecisionTap* tap, u32 owner) noexcept {
    const bool ok =
        descriptor_->hooks[hook](flow_, shared_, static_cast<i64>(shared_count_), params_, event, result) == 0;
    if (tap != nullptr) tell(tap, owner, hook, event, result, ok);
    return ok;
  }
  // Replaces the policy by `fixed`, with fresh records. False when out of memory (the old one stays, harmless).
  bool fall_back() noexcept;
  bool replace(PolicyChoice choice) noexcept;
  // Other parameters for the same policy, whose records stay. False when another policy runs here by now.
  bool set_params(PolicyChoice choice) noexcept {
    if (descriptor_ != choice.descriptor) return false;
    params_ = choice.params != nullptr ? choice.params : descriptor_->params_default;
    return true;
  }

  void* shared(std::size_t index) noexcept {
    return static_cast<std::byte*>(shared_) + index * descriptor_->shared_bytes;
  }
  const policy::Descriptor& descriptor() const noexcept { return *descriptor_; }
  PolicyChoice choice() const noexcept { return {descriptor_, params_}; }
  std::size_t bytes_held() const noexcept { return bytes_; }

 private:
  void tell(DecisionTap* tap, u32 owner, std::size_t hook, const void* event, const void* result,
            bool ok) const noexcept;

  const policy::Descriptor* descriptor_;
  const void* params_;
  policy::Family family_;
  bool open_ = false;
  std::size_t shared_count_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> records_;
  void* flow_ = nullptr;
  void* shared_ = nullptr;
};

}  // namespace weft::core
