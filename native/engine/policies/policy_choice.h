// What text means when it names a policy: a library, and values for its parameters.
// Loads libraries and reads words; changes no flow.
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

// A policy as it was chosen. Kept for as long as a flow may refer to it (PolicyBoard says when that is over).
struct ChosenPolicy {
  std::uint64_t number = 0;  // tells it from every other choice of this process, also from those that are gone
  std::shared_ptr<const policy::Library> library;
  std::vector<std::int64_t> params;  // the record, in words
  core::PolicyChoice choice() const noexcept {
    return {&library->descriptor(), params.empty() ? nullptr : params.data()};
  }
};
using PolicyRef = std::shared_ptr<const ChosenPolicy>;

// One of each family; null: none (credit), or what the process uses.
struct PolicySet {
  PolicyRef window, path, loss, credit;
  bool own_credit = false;  // credit is meant, also when it is null
  PolicyRef& of(policy::Family family) noexcept {
    return family == policy::Family::window ? window
           : family == policy::Family::path ? path
           : family == policy::Family::loss ? loss
                                            : credit;
  }
};

// Where compiled policies are looked for: the knob's directory, then next to the library this code is part of.
std::vector<std::string> policy_directories(const Knobs& knobs);

bool family_of(std::string_view word, policy::Family* out) noexcept;

// "swift", "window/swift", "/tmp/mine.so", "swift:target_queue_ns=50000,decrease_max=0.3", "weighted:weight=1/0/0.5". A
// list shorter than its field sets the first ones. "none" gives null for credit. White space around names and values
// counts for nothing; a path may hold any character. False, with `error` set, when anything is wrong.
bool choose_policy(policy::Family family, const std::string& text, const std::vector<std::string>& directories,
                   PolicyRef* out, std::string* error);

// The same policy with other parameters: "increase_segments=8,cuts=1".
bool change_params(const PolicyRef& policy, std::string_view text, PolicyRef* out, std::string* error);

// "window=dctcp path=reps:freeze_ns=1000" on top of what `out` holds. A choice ends where the next family= begins.
bool choose_set(std::string_view text, const std::vector<std::string>& directories, PolicySet* out, std::string* error);

// "3 window=dctcp path=reps; 7 loss=go_back_n": a set for each traffic class.
bool choose_classes(std::string_view text, const std::vector<std::string>& directories,
                    std::map<std::int64_t, PolicySet>* out, std::string* error);

// The set that the knobs name.
bool choose_policies(const Knobs& knobs, PolicySet* out, std::string* error);

}  // namespace weft::engine
