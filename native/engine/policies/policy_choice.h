// Parses texts that name policies and parameter values, and loads the policies' libraries.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/core/types.h"
#include "native/engine/knobs.h"
#include "native/policy/loader.h"

namespace weft::engine {

// A chosen policy with its parameters. PolicyBoard keeps it as long as a flow may refer to it.
struct ChosenPolicy {
  std::uint64_t number = 0;  // unique number of the choice within this process; never reused
  std::shared_ptr<const policy::Library> library;
  std::vector<std::int64_t> params;  // the parameters; each takes 8 bytes
  core::PolicyChoice choice() const noexcept {
    return {&library->descriptor(), params.empty() ? nullptr : params.data()};
  }
};
using PolicyRef = std::shared_ptr<const ChosenPolicy>;

// One policy of each family; null: the process's default policy, or for `credit` no policy.
struct PolicySet {
  PolicyRef window, path, loss, credit;
  bool own_credit = false;  // `credit` was chosen, even if it is null
  PolicyRef& of(policy::Family family) noexcept {
    return family == policy::Family::window ? window
           : family == policy::Family::path ? path
           : family == policy::Family::loss ? loss
                                            : credit;
  }
  bool any() const noexcept {
    return window != nullptr || path != nullptr || loss != nullptr || credit != nullptr || own_credit;
  }
  // Sets the policies of a flow. The path policy is its peer's.
  void put_into(core::FlowConfig* flow) const noexcept {
    if (window != nullptr) flow->window = window->choice();
    if (loss != nullptr) flow->loss = loss->choice();
    if (credit != nullptr) flow->credit = credit->choice();
    flow->own_credit = own_credit;
  }
};

// The directories with compiled policies: WEFT_POLICY_DIRECTORY, then those next to the library that contains this
// code.
std::vector<std::string> policy_directories(const Knobs& knobs);

bool family_of(std::string_view word, policy::Family* out) noexcept;

// The parts of a choice: the name or path of a policy, and the parameters after the colon, if there is one.
struct ChoiceParts {
  std::string_view name;
  bool has_params = false;
  std::string_view params;
};
ChoiceParts parts_of(std::string_view text) noexcept;

// The choices in a set such as "window=dctcp path=reps".
std::vector<std::string_view> choices_of(std::string_view text);

// Parses parameters such as "increase_segments=8,cuts=1" into `words`, which has the fields of `descriptor`. Returns
// false and sets `error` if the text is wrong.
bool set_params(const policy::Descriptor& descriptor, std::string_view text, std::vector<std::int64_t>* words,
                std::string* error);

// Parses a choice such as "swift", "window/swift", "/tmp/mine.so", "swift:target_queue_ns=50000,decrease_max=0.3" or
// "weighted:weight=1/0/0.5" (a list may set only the first elements). "none" gives null for credit. White space around
// names and values is ignored. Returns false and sets `error` if the text is wrong.
bool choose_policy(policy::Family family, const std::string& text, const std::vector<std::string>& directories,
                   PolicyRef* out, std::string* error);

// Parses parameters such as "increase_segments=8,cuts=1" for a policy that was chosen before.
bool change_params(const PolicyRef& policy, std::string_view text, PolicyRef* out, std::string* error);

// Parses a set of choices such as "window=dctcp path=reps:freeze_ns=1000" into `out`. Families that it does not name
// keep their choice.
bool choose_set(std::string_view text, const std::vector<std::string>& directories, PolicySet* out, std::string* error);

// Parses a set for each traffic class, such as "3 window=dctcp path=reps; 7 loss=go_back_n".
bool choose_classes(std::string_view text, const std::vector<std::string>& directories,
                    std::map<std::int64_t, PolicySet>* out, std::string* error);

// Makes the set of policies that the settings name.
bool choose_policies(const Knobs& knobs, PolicySet* out, std::string* error);

}  // namespace weft::engine
