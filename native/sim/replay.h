// Runs recorded decisions through core::PolicySlot, with records of its own, and says which came out otherwise. Events
// are those of the recording; the caller has the libraries.
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

// What came of the decisions of one policy.
struct ReplayedPolicy {
  policy::Family family = policy::Family::window;
  std::string name;
  std::string source_sha256;
  bool known = false;  // a library of this source was added
  u64 decisions = 0;   // replayed
  u64 differ = 0;      // in any bit of the answer, or in whether the hook failed
  u64 failed = 0;      // in the recording
  u64 skipped = 0;     // of a policy that is not known, or of an owner whose start was not recorded
  std::array<u64, policy::kMaxHooks> by_hook{};
};

class Replay {
 public:
  // A policy that may have decided; the descriptor outlives this.
  void add(const policy::Descriptor& descriptor) { descriptors_.push_back(&descriptor); }

  // Every entry of a recording, its magic included; several may follow each other, each with owners of its own. False
  // when it is none.
  bool run(std::span<const std::byte> image);

  const std::vector<ReplayedPolicy>& policies() const noexcept { return policies_; }
  u64 lost() const noexcept { return lost_; }  // found no room when recorded: what follows may differ
  bool cut() const noexcept { return cut_; }   // ends in the middle of an entry
  // Where and how an answer differed first; empty: nowhere.
  const std::string& first_difference() const noexcept { return first_difference_; }
  // An entry that makes no sense, behind which nothing was read; empty: none.
  const std::string& damage() const noexcept { return damage_; }

 private:
  // A policy as an engine named it: with these parameters.
  struct Named {
    std::size_t policy = 0;  // in policies_
    const policy::Descriptor* descriptor = nullptr;
    std::vector<core::i64> params;  // words keep it aligned
  };
  // One flow, or one peer of the path family.
  struct Owner {
    explicit Owner(policy::Family family, core::PolicyChoice choice) : slot(family, choice) {}
    core::PolicySlot slot;
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
  std::map<u32, Named> named_;                                                         // by engine and its own number
  std::map<u64, std::unique_ptr<Owner>> owners_;                                       // by family and owner
  std::map<std::pair<u32, const policy::Descriptor*>, std::vector<core::i64>> ports_;  // by engine: of credit policies
  u64 lost_ = 0;
  u64 at_ = 0;  // byte of the recording
  bool cut_ = false;
  std::string first_difference_, damage_;
};

}  // namespace weft::sim
