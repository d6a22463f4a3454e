// Holds the records of one policy and calls its hooks. If a call fails, the owner can replace the policy by `fixed` of
// the same family.
#pragma once

#include <cstddef>
#include <memory>

#include "native/core/trace.h"
#include "native/core/types.h"

namespace weft::core {

class PolicySlot {
 public:
  PolicySlot(policy::Family family, PolicyChoice choice) noexcept;

  // Allocates the flow record and `shared_count` shared records, all zero. False when out of memory.
  bool open(std::size_t shared_count) noexcept;
  bool is_open() const noexcept { return open_; }
  // Uses the caller's memory as the shared record. After fall_back() the slot uses a shared record of its own.
  void share(void* record, std::size_t bytes) noexcept {
    if (bytes >= descriptor_->shared_bytes) shared_ = record;
  }
  void close() noexcept;  // frees the records; open() allocates new ones

  bool has(std::size_t hook) const noexcept { return policy::hook_of(*descriptor_, hook) != nullptr; }
  // Calls a hook, which the policy must have. False when the policy failed; the caller then calls fall_back(). Inlined,
  // because each packet needs several calls.
  [[gnu::always_inline]] bool call(std::size_t hook, const void* event, void* result, const Trace& trace,
                                   u32 owner) noexcept {
    const policy::Hook call = policy::hook_of(*descriptor_, hook);
    const bool ok = call(flow_, shared_, static_cast<i64>(shared_count_), params_, event, result) == 0;
    if (trace.wants_decisions()) tell(trace, owner, hook, event, result, ok);
    return ok;
  }
  // Replaces the policy by `fixed`, with new records. False when out of memory: the old policy stays, and its next
  // failed call leads to the next attempt.
  bool fall_back() noexcept;
  bool replace(PolicyChoice choice) noexcept;
  // Changes the policy's parameters and keeps its records. False if `choice` is another policy than the present one.
  bool set_params(PolicyChoice choice) noexcept {
    if (descriptor_ != choice.descriptor) return false;
    params_ = choice.params != nullptr ? choice.params : descriptor_->params_default;
    return true;
  }

  void prefetch_flow() const noexcept {
    if (flow_ != nullptr) core::prefetch(flow_, static_cast<const std::byte*>(flow_) + descriptor_->flow_bytes);
  }
  void prefetch_shared(std::size_t index) const noexcept {
    if (!open_) return;
    const auto* const record = static_cast<const std::byte*>(shared_) + index * descriptor_->shared_bytes;
    core::prefetch(record, record + descriptor_->shared_bytes);
  }
  void* shared(std::size_t index) noexcept {
    return static_cast<std::byte*>(shared_) + index * descriptor_->shared_bytes;
  }
  const policy::Descriptor& descriptor() const noexcept { return *descriptor_; }
  PolicyChoice choice() const noexcept { return {descriptor_, params_}; }
  std::size_t bytes_held() const noexcept { return bytes_; }

 private:
  void tell(const Trace& trace, u32 owner, std::size_t hook, const void* event, const void* result,
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
