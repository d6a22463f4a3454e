// Replays recorded decisions through core::PolicySlot with the recorded events, and reports answers that differ. The
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

// Results for one policy.
struct ReplayedPolicy {
  policy::Family family = policy::Family::window;
  std::string name;
  std::string source_sha256;
  bool known = false;  // a library built from this source was added
  u64 decisions = 0;   // number of replayed decisions
  u64 differ = 0;      // answers that differ in any bit, or in whether the hook failed
  u64 failed = 0;      // failed when recorded
  u64 skipped = 0;     // of unknown policies, or of owners whose start was not recorded
  std::array<u64, policy::kMaxHooks> by_hook{};
};

class Replay {
 public:
  // Adds a policy that may occur in the recording; the descriptor must outlive this object.
  void add(const policy::Descriptor& descriptor) { descriptors_.push_back(&descriptor); }

  // Replays a recording, with its magic; further recordings may be replayed afterwards, each with owners of its own.
  // False if it is not a recording.
  bool run(std::span<const std::byte> image);

  const std::vector<ReplayedPolicy>& policies() const noexcept { return policies_; }
  u64 lost() const noexcept { return lost_; }  // dropped when recorded for lack of room: later answers may differ
  bool cut() const noexcept { return cut_; }   // the recording ends in the middle of an entry
  // Where and how an answer first differed; empty: nowhere.
  const std::string& first_difference() const noexcept { return first_difference_; }
  // Describes an invalid entry, at which reading stopped; empty: none.
  const std::string& damage() const noexcept { return damage_; }

 private:
  // A policy as named by an engine, with parameters.
  struct Named {
    std::size_t policy = 0;  // in policies_
    const policy::Descriptor* descriptor = nullptr;
    std::vector<core::i64> params;  // int64 words for alignment
  };
  // One flow, or (path family) one peer.
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
  std::map<u32, Named> named_;                    // by engine and the engine's own number
  std::map<u64, std::unique_ptr<Owner>> owners_;  // by family and owner
  // by engine: port records of credit policies
  std::map<std::pair<u32, const policy::Descriptor*>, std::vector<core::i64>> ports_;
  u64 lost_ = 0;
  u64 at_ = 0;  // current byte of the recording
  bool cut_ = false;
  std::string first_difference_, damage_;
};

}  // namespace weft::sim
