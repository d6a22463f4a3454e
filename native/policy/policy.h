// The ABI between the core and a compiled policy: the exported descriptor and how its hooks are called.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/policy/records.h"

namespace weft::policy {

// Version of the policy ABI. Descriptor and the records of events and results only grow: new fields are added at their
// ends. So a library that was compiled before a field was added works: the sizes in its descriptor tell how much of
// each it has. Zero in a new field of a result means what held before the field was added.
inline constexpr std::uint32_t kAbiVersion = 2;
inline constexpr const char* kDescriptorSymbol = "weft_policy_descriptor";
inline constexpr std::size_t kFirstHooks = 4;  // of the first libraries of this ABI
inline constexpr std::size_t kMaxHooks = 6;
inline constexpr std::int64_t kMaxPaths = 256;
inline constexpr std::uint32_t kMaxRecordBytes = 4096;

enum class Family : std::uint32_t { window = 1, credit = 2, path = 3, loss = 4 };

// Numbers of hooks: see hook_of().
namespace hook {
inline constexpr std::size_t start = 0;  // in every family, `start` is the first hook
inline constexpr std::size_t window_ack = 1, window_loss = 2, window_timeout = 3;
inline constexpr std::size_t window_timer = 4, window_send = 5;  // a policy may lack them
inline constexpr std::size_t credit_demand = 1, credit_tick = 2;
inline constexpr std::size_t path_pick = 1, path_feedback = 2;
inline constexpr std::size_t loss_ack = 1, loss_timer = 2;
}  // namespace hook

// A function of a policy that the core calls.
// flow: the policy's record for one flow (path family: for one peer).
// shared: `n_shared` path records in the families path and loss, and in the window family for a policy that has path
// records (`shared_bytes` is not 0); credit: one record of the receiving NIC port.
// Flow and shared records are zero at the start. The result record is preset with the values that apply if the hook
// does not change them.
// Returns 0, or another number if the policy failed (a failed bounds check, a raised exception). The caller then
// replaces the policy by `fixed`.
using Hook = std::int32_t (*)(void* flow, void* shared, std::int64_t n_shared, const void* params, const void* event,
                              void* result);

// Parts of an event that cost time, so that the core computes them only for policies that read them.
enum Reads : std::uint32_t { reads_delivery = 1 };

struct Descriptor {
  std::uint32_t descriptor_bytes;
  std::uint32_t abi_version;
  std::uint32_t family;
  std::uint32_t hook_count;
  std::uint32_t flow_bytes;    // size of one flow record; 0: the policy has none
  std::uint32_t shared_bytes;  // size of one path record or NIC port record
  std::uint32_t params_bytes;
  // Sizes of the event and result records for which the policy was compiled.
  std::uint32_t event_bytes;
  std::uint32_t result_bytes;
  std::uint32_t reads;  // Reads, added up
  char name[48];
  char source_sha256[72];
  char cpu_baseline[24];       // instruction set baseline: "x86-64-v3" or "aarch64"
  const void* params_default;  // the default parameters, params_bytes long
  Hook hooks[kFirstHooks];
  const char* params_fields;  // a line per parameter: name, i (int64) or f (float64), byte offset, array length
  // A line per named set of parameters: its name, a space, and the parameters as a user writes them. Null: none.
  // Libraries of kDescriptorBytesMin lack this field: see presets_of().
  const char* presets;
  Hook later_hooks[kMaxHooks - kFirstHooks];  // null: the policy lacks this hook
};
inline constexpr std::size_t kDescriptorBytesMin = offsetof(Descriptor, presets);
static_assert(sizeof(Descriptor) == 40 + 48 + 72 + 24 + 8 + 8 * kMaxHooks + 8 + 8);
static_assert(offsetof(Descriptor, name) == 40);
static_assert(offsetof(Descriptor, params_default) == 184);
static_assert(offsetof(Descriptor, hooks) == 192);
static_assert(offsetof(Descriptor, params_fields) == 224);
static_assert(offsetof(Descriptor, presets) == 232);
static_assert(offsetof(Descriptor, later_hooks) == 240);

// A hook by its number. Null: the policy lacks it, as libraries lack it that were compiled before the hook was added.
inline Hook hook_of(const Descriptor& descriptor, std::size_t hook) noexcept {
  if (hook < kFirstHooks) return descriptor.hooks[hook];
  return hook < descriptor.hook_count ? descriptor.later_hooks[hook - kFirstHooks] : nullptr;
}

inline const char* presets_of(const Descriptor& descriptor) noexcept {
  const bool has = descriptor.descriptor_bytes >= offsetof(Descriptor, presets) + sizeof descriptor.presets;
  return has && descriptor.presets != nullptr ? descriptor.presets : "";
}

}  // namespace weft::policy
