// Replays a policy's decisions. A policy's records are created when its start was recorded, and the result is preset as
// the core presets it. The recorded event contains what the core told the policy, so only the policy's answer is
// computed.
#include "native/sim/replay.h"

#include <algorithm>
#include <cstring>

#include "native/policy/loader.h"

namespace weft::sim {
namespace {

using core::i64;
using core::RecordingEntry;

constexpr std::size_t kPolicyHeadBytes = 4 * sizeof(u32) + 48 + 72;

template <class T>
T read(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string text_at(std::span<const std::byte> bytes, std::size_t at, std::size_t most) {
  const char* begin = reinterpret_cast<const char*>(bytes.data() + at);
  std::string text(begin, static_cast<const char*>(std::find(begin, begin + most, '\0')));
  // The text, such as a policy's name, is shown to users, so unprintable bytes of a damaged file are replaced.
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return text;
}

u32 engine_of(const RecordingEntry& head) { return head.owner >> 24; }

// The result record that a hook fills. It is preset before the call, as in native/core/*_control.cc and path_set.cc.
union Answer {
  policy::WindowResult window;
  policy::CreditResult credit;
  policy::PathResult path;
  policy::LossResult loss;
};

Answer standing(policy::Family family, std::size_t hook, const i64* event, bool start_failed) {
  Answer answer{};
  switch (family) {
    case policy::Family::window: {
      policy::WindowEvent told;
      std::memcpy(&told, event, sizeof told);
      // If a policy fails in on_start, `fixed` replaces it and begins with a quarter of the largest window.
      const bool anew = hook == policy::hook::start && start_failed;
      answer.window = {anew ? static_cast<double>(told.window_bytes_max) / 4 : static_cast<double>(told.window_bytes),
                       0, 0, 0};
      break;
    }
    case policy::Family::credit: {
      policy::CreditEvent told;
      std::memcpy(&told, event, sizeof told);
      answer.credit = {told.granted_bytes, -1};
      break;
    }
    case policy::Family::path:
      answer.path = policy::PathResult{};
      if (hook == policy::hook::path_pick) answer.path.path = -1;
      break;
    case policy::Family::loss:
      answer.loss = {-1, -1, -1, 0};
      break;
  }
  return answer;
}

}  // namespace

bool Replay::run(std::span<const std::byte> image) {
  constexpr std::size_t kMagicBytes = sizeof core::kRecordingMagic;
  if (image.size() < kMagicBytes || std::memcmp(image.data(), core::kRecordingMagic, kMagicBytes) != 0) return false;
  named_.clear();
  owners_.clear();
  ports_.clear();
  for (at_ = kMagicBytes; at_ < image.size();) {
    const std::span<const std::byte> left = image.subspan(at_);
    if (left.size() < sizeof(RecordingEntry)) {
      cut_ = true;
      break;
    }
    const auto head = read<RecordingEntry>(left, 0);
    const bool sized = head.bytes >= sizeof head && head.bytes % 8 == 0;
    if (sized && head.bytes > left.size()) {
      cut_ = true;
      break;
    }
    if (!sized || !read_entry(left.subspan(sizeof head, head.bytes - sizeof head), head)) {
      damage_ = "damaged at byte " + std::to_string(at_);
      break;
    }
    at_ += head.bytes;
  }
  return true;
}

bool Replay::read_entry(std::span<const std::byte> body, const RecordingEntry& head) {
  if (head.type == RecordingEntry::policy) return name_policy(body, head);
  if (head.type == RecordingEntry::decision) return decide(body, head);
  if (head.type != RecordingEntry::gap || body.size() < sizeof(u64)) return false;
  lost_ += read<u64>(body, 0);
  return true;
}

bool Replay::name_policy(std::span<const std::byte> body, const RecordingEntry& head) {
  if (body.size() < kPolicyHeadBytes || head.family < 1 || head.family > 4) return false;
  const auto params_bytes = read<u32>(body, 2 * sizeof(u32));
  if (params_bytes > policy::kMaxRecordBytes || body.size() != kPolicyHeadBytes + params_bytes) return false;
  const auto family = static_cast<policy::Family>(head.family);
  const std::string name = text_at(body, 4 * sizeof(u32), 48), source = text_at(body, 4 * sizeof(u32) + 48, 72);
  Named named;
  for (const policy::Descriptor* one : descriptors_) {
    const bool same = one->family == head.family && name == one->name && source == one->source_sha256;
    const bool fits = one->event_bytes == read<u32>(body, 0) && one->result_bytes == read<u32>(body, sizeof(u32)) &&
                      one->params_bytes == params_bytes;
    if (same && fits) named.descriptor = one;
  }
  const auto known = std::find_if(policies_.begin(), policies_.end(), [&](const ReplayedPolicy& one) {
    return one.family == family && one.name == name && one.source_sha256 == source;
  });
  named.policy = static_cast<std::size_t>(known - policies_.begin());
  if (known == policies_.end()) {
    policies_.push_back({});
    policies_.back().family = family;
    policies_.back().name = name;
    policies_.back().source_sha256 = source;
  }
  if (named.descriptor != nullptr) policies_[named.policy].known = true;
  named.params.resize(params_bytes / sizeof(i64) + 1);
  if (params_bytes != 0) std::memcpy(named.params.data(), body.data() + kPolicyHeadBytes, params_bytes);
  // Policy slots point to the parameters stored here. The pointers stay valid, because the engine never uses a policy's
  // id again for another one. If a damaged recording does, set_params() replaces a pointer before it is used.
  named_.insert_or_assign(engine_of(head) << 16 | head.policy_id, std::move(named));
  return true;
}

// Returns the policy slot of a flow or peer. A recorded start creates a new slot. Null if no start was recorded.
Replay::Owner* Replay::owner_of(const RecordingEntry& head, const Named& named) {
  const auto family = static_cast<policy::Family>(head.family);
  const core::PolicyChoice choice{named.descriptor, named.params.data()};
  std::unique_ptr<Owner>& owner = owners_[u64{head.family} << 32 | head.owner];
  if (head.hook != policy::hook::start) {
    return owner != nullptr && owner->slot.set_params(choice) ? owner.get() : nullptr;
  }
  const bool start_failed = owner != nullptr && owner->start_failed;
  owner = std::make_unique<Owner>(family, choice);
  owner->start_failed = start_failed;
  const bool credit = family == policy::Family::credit;
  owner->paths = head.path_count;
  if (!owner->slot.open(credit ? 1 : head.path_count)) {
    owner.reset();
    return nullptr;
  }
  if (credit) {
    std::vector<i64>& record = ports_[{engine_of(head), named.descriptor}];
    record.resize(named.descriptor->shared_bytes / sizeof(i64) + 1);
    owner->slot.share(record.data(), record.size() * sizeof(i64));
  }
  return owner.get();
}

bool Replay::decide(std::span<const std::byte> body, const RecordingEntry& head) {
  const auto found = named_.find(engine_of(head) << 16 | head.policy_id);
  if (found == named_.end() || head.hook >= policy::kMaxHooks) return false;
  const Named& named = found->second;
  ReplayedPolicy& totals = policies_[named.policy];
  if (static_cast<u32>(totals.family) != head.family || head.path_count > policy::kMaxPaths) return false;
  if (head.status != 0) ++totals.failed;
  if (named.descriptor == nullptr) {
    ++totals.skipped;
    owners_.erase(u64{head.family} << 32 | head.owner);
    return true;
  }
  const policy::Descriptor& descriptor = *named.descriptor;
  const bool path = totals.family == policy::Family::path;
  const std::size_t heads = path ? head.path_count * sizeof(policy::PathHead) : 0;
  const std::size_t records = descriptor.event_bytes + descriptor.result_bytes;
  if (policy::hook_of(descriptor, head.hook) == nullptr || body.size() != records + heads) return false;
  Owner* owner = owner_of(head, named);
  if (owner == nullptr) {
    ++totals.skipped;
    return true;
  }
  if (path && head.path_count != owner->paths) return false;
  std::array<i64, 64> event{};
  if (descriptor.event_bytes > sizeof event) return false;
  std::memcpy(event.data(), body.data(), descriptor.event_bytes);
  for (std::size_t i = 0; path && i < head.path_count; ++i) {
    std::memcpy(owner->slot.shared(i), body.data() + records + i * sizeof(policy::PathHead), sizeof(policy::PathHead));
  }
  Answer answer = standing(totals.family, head.hook, event.data(), owner->start_failed);
  const bool ok = owner->slot.call(head.hook, event.data(), &answer, core::Trace{}, head.owner);
  owner->start_failed = head.hook == policy::hook::start && !ok;
  ++totals.decisions;
  ++totals.by_hook[head.hook];
  compare(head, named, body.subspan(descriptor.event_bytes, descriptor.result_bytes),
          reinterpret_cast<const std::byte*>(&answer), ok);
  return true;
}

void Replay::compare(const RecordingEntry& head, const Named& named, std::span<const std::byte> recorded,
                     const std::byte* answered, bool ok) {
  ReplayedPolicy& totals = policies_[named.policy];
  const bool same = std::memcmp(recorded.data(), answered, recorded.size()) == 0;
  if (same && ok == (head.status == 0)) return;
  ++totals.differ;
  if (!first_difference_.empty()) return;
  std::size_t word = 0;
  while (word + 8 < recorded.size() && std::memcmp(recorded.data() + word, answered + word, 8) == 0) word += 8;
  u64 then, now;
  std::memcpy(&then, recorded.data() + word, sizeof then);
  std::memcpy(&now, answered + word, sizeof now);
  first_difference_ = std::string(policy::family_name(totals.family)) + " policy " + totals.name + ", decision " +
                      std::to_string(totals.decisions) + " at byte " + std::to_string(at_) + " of the recording, " +
                      policy::hook_name(totals.family, head.hook) + " of flow or peer " + std::to_string(head.owner) +
                      ": word " + std::to_string(word / 8) + " of the answer was " + std::to_string(then) +
                      " when recorded, is now " + std::to_string(now) + (ok ? "" : ", and the hook failed");
}

}  // namespace weft::sim
