// Encodes recordings. A policy entry precedes the policy's first decision, and is repeated when the policy's parameters
// change, because a replay needs them. encode() does not allocate, because it runs on the engine's thread.
#include "native/core/recording.h"

namespace weft::core {

DecisionEncoder::DecisionEncoder(u32 owner_tag)
    : scratch_(std::make_unique<std::byte[]>(kEntryBytesMax)),
      known_(std::make_unique<std::array<Known, kKnown>>()),
      owner_tag_(owner_tag) {}

void DecisionEncoder::add_head(RecordingEntry entry, std::size_t body_bytes) noexcept {
  entry.bytes = static_cast<u32>(sizeof entry + body_bytes);
  add(&entry, sizeof entry);
}

u16 DecisionEncoder::name_policy(const Decision& decision) noexcept {
  const policy::Descriptor& descriptor = *decision.descriptor;
  for (const Known& known : *known_) {
    if (known.descriptor != &descriptor) continue;
    const std::size_t bytes = descriptor.params_bytes;
    if (bytes == 0 || std::memcmp(known.params.data(), decision.params, bytes) == 0) return known.id;
  }
  Known& known = (*known_)[next_known_++ % kKnown];
  known.descriptor = &descriptor;
  known.id = ++last_id_;
  if (descriptor.params_bytes != 0) std::memcpy(known.params.data(), decision.params, descriptor.params_bytes);
  named_now_ = &known;
  RecordingEntry entry;
  entry.type = RecordingEntry::policy;
  entry.owner = owner_tag_;  // tells encoders apart, because each numbers its policies from 1
  entry.family = static_cast<u8>(decision.family);
  entry.policy_id = known.id;
  const u32 sizes[4] = {descriptor.event_bytes, descriptor.result_bytes, descriptor.params_bytes, 0};
  add_head(entry, sizeof sizes + sizeof descriptor.name + sizeof descriptor.source_sha256 + descriptor.params_bytes);
  add(sizes, sizeof sizes);
  add(descriptor.name, sizeof descriptor.name);
  add(descriptor.source_sha256, sizeof descriptor.source_sha256);
  if (descriptor.params_bytes != 0) add(decision.params, descriptor.params_bytes);
  return known.id;
}

std::span<const std::byte> DecisionEncoder::encode(const Decision& decision) noexcept {
  used_ = 0;
  named_now_ = nullptr;
  const policy::Descriptor& descriptor = *decision.descriptor;
  RecordingEntry entry;
  entry.policy_id = name_policy(decision);
  entry.type = RecordingEntry::decision;
  entry.family = static_cast<u8>(decision.family);
  entry.hook = static_cast<u8>(decision.hook);
  entry.status = decision.ok ? 0 : 1;
  entry.owner = owner_tag_ + decision.owner;
  entry.path_count = static_cast<u16>(decision.path_count);
  const std::size_t heads = decision.paths == nullptr ? 0 : decision.path_count;
  add_head(entry, descriptor.event_bytes + descriptor.result_bytes + heads * sizeof(policy::PathHead));
  add(decision.event, descriptor.event_bytes);
  add(decision.result, descriptor.result_bytes);
  for (std::size_t i = 0; i < heads; ++i) {
    add(decision.paths + i * descriptor.shared_bytes, sizeof(policy::PathHead));
  }
  return {scratch_.get(), used_};
}

void DecisionEncoder::drop() noexcept {
  if (named_now_ != nullptr) named_now_->descriptor = nullptr;
}

std::span<const std::byte> DecisionEncoder::encode_gap(u64 decisions) noexcept {
  used_ = 0;
  RecordingEntry entry;
  entry.type = RecordingEntry::gap;
  add_head(entry, sizeof decisions);
  add(&decisions, sizeof decisions);
  return {scratch_.get(), used_};
}

}  // namespace weft::core
