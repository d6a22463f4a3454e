// Allocates a policy's records and replaces policies. One allocation holds the flow record and the shared records;
// 8-byte alignment suffices, because records contain only int64 and float64.
#include "native/core/policy_slot.h"

#include <cstring>
#include <new>

#include "native/policy/loader.h"

namespace weft::core {

PolicySlot::PolicySlot(policy::Family family, PolicyChoice choice) noexcept : family_(family) {
  descriptor_ = choice ? choice.descriptor : &policy::fixed(family);
  params_ = choice && choice.params != nullptr ? choice.params : descriptor_->params_default;
}

bool PolicySlot::open(std::size_t shared_count) noexcept {
  const std::size_t flow_bytes = (descriptor_->flow_bytes + 7u) & ~7u;
  const std::size_t bytes = flow_bytes + shared_count * descriptor_->shared_bytes + 8;
  std::unique_ptr<std::byte[]> records(new (std::nothrow) std::byte[bytes]);
  if (records == nullptr) return false;
  std::memset(records.get(), 0, bytes);
  records_ = std::move(records);
  bytes_ = bytes;
  shared_count_ = shared_count;
  flow_ = records_.get();
  shared_ = records_.get() + flow_bytes;
  open_ = true;
  return true;
}

void PolicySlot::close() noexcept {
  records_.reset();
  bytes_ = 0;
  flow_ = shared_ = nullptr;
  open_ = false;
}

bool PolicySlot::replace(PolicyChoice choice) noexcept {
  const policy::Descriptor* before = descriptor_;
  const void* params_before = params_;
  descriptor_ = choice ? choice.descriptor : &policy::fixed(family_);
  params_ = choice && choice.params != nullptr ? choice.params : descriptor_->params_default;
  if (!open_ || open(shared_count_)) return true;
  descriptor_ = before;
  params_ = params_before;
  return false;
}

void PolicySlot::tell(const Trace& trace, u32 owner, std::size_t hook, const void* event, const void* result,
                      bool ok) const noexcept {
  Decision decision;
  decision.family = family_;
  decision.hook = hook;
  decision.owner = owner;
  decision.descriptor = descriptor_;
  decision.params = params_;
  decision.event = event;
  decision.result = result;
  if (family_ == policy::Family::path) decision.paths = static_cast<const std::byte*>(shared_);
  const bool has_paths =
      family_ == policy::Family::window ? descriptor_->shared_bytes != 0 : family_ != policy::Family::credit;
  if (has_paths) decision.path_count = shared_count_;
  decision.ok = ok;
  trace.emit(decision);
}

bool PolicySlot::fall_back() noexcept { return replace(PolicyChoice{}); }

}  // namespace weft::core
