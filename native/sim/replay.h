// Replays recorded decisions: calls the policies again with the recorded events, and reports answers that differ. The
// caller supplies the policies' libraries.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "native/core/policy_slot.h"
#include "native/core/recording.h"
#include "native/core/types.h"

namespace weft::sim {

using core::u32;
using core::u64;

// Results of the replay for one policy.
struct ReplayedPolicy {
  policy::Family family = policy::Family::window;
  std::string name;
  std::string source_sha256;
  bool known = false;  // a policy built from the same source was added by add()
  u64 decisions = 0;   // number of replayed decisions
  u64 differ = 0;      // answers that differ in a bit, or in whether the hook failed
  u64 failed = 0;      // decisions in which the hook failed when recorded
  // Decisions that were not replayed: the policy is unknown, or the start of its flow or peer was not recorded.
  u64 skipped = 0;
  std::array<u64, policy::kMaxHooks> by_hook{};
};

class Replay {
 public:
  // Adds a policy that may occur in the recording. The descriptor must outlive this object.
  void add(const policy::Descriptor& descriptor) { descriptors_.push_back(&descriptor); }

  // Replays a recording, which must begin with its magic bytes. Other recordings may be replayed afterwards; each has
  // flows and peers of its own. Returns false if `image` is not a recording.
  bool run(std::span<const std::byte> image);

  const std::vector<ReplayedPolicy>& policies() const noexcept { return policies_; }
  u64 lost() const noexcept { return lost_; }  // decisions that the recorder had no room for: later answers may differ
  bool cut() const noexcept { return cut_; }   // the recording ends in the middle of an entry
  // Where and how an answer first differed; empty if none did.
  const std::string& first_difference() const noexcept { return first_difference_; }
  // Describes an invalid entry, at which the replay stopped; empty if there was none.
  const std::string& damage() const noexcept { return damage_; }

 private:
  // A policy and its parameters. Decisions in the recording refer to it by the engine and the engine's policy number.
  struct Named {
    std::size_t policy = 0;  // index in policies_
    const policy::Descriptor* descriptor = nullptr;
    std::vector<core::i64> params;  // the bytes of the parameters; int64 for their alignment
  };
  // A flow or, in the path family, a peer.
  struct Owner {
    explicit Owner(policy::Family family, core::PolicyChoice choice) : slot(family, choice) {}
    core::PolicySlot slot;
    std::size_t paths = 0;  // number of paths for which the slot has records
    bool start_failed = false;
  };
  struct Results;

  bool read_entry(std::span<const std::byte> entry, const core::RecordingEntry& head);
  bool name_policy(std::span<const std::byte> body, const core::RecordingEntry& head);
  bool decide(std::span<const std::byte> body, const core::RecordingEntry& head);
  Owner* owner_of(const core::RecordingEntry& head, const Named& named);
  void compare(const core::RecordingEntry& head, const Named& named, std::span<const std::byte> recorded,
               const std::byte* answered, bool ok);

  std::vector<const policy::Descriptor*> descriptors_;
  std::vector<ReplayedPolicy> policies_;
  std::map<u32, Named> named_;                    // (engine, the engine's number for the policy) -> policy
  std::map<u64, std::unique_ptr<Owner>> owners_;  // (family, flow or peer) -> owner
  // The records that credit policies keep for each network interface (`Port` in Python), by engine and policy.
  std::map<std::pair<u32, const policy::Descriptor*>, std::vector<core::i64>> ports_;
  u64 lost_ = 0;
  u64 at_ = 0;  // byte offset in the recording
  bool cut_ = false;
  std::string first_difference_, damage_;
};

}  // namespace weft::sim
