// The policies of a process: the defaults, those of each traffic class, and changes while flows are open. Owns the
// policy libraries, and unloads one only when no engine refers to it. Its functions must not be called on engine
// threads.
//
// It returns policies as owning references. A thread that passes a policy to an engine by Engine::call() must keep its
// reference until that call has returned (decision 0008).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/engine/engine.h"
#include "native/engine/policies/policy_choice.h"
#include "native/engine/policies/policy_info.h"

namespace weft::engine {

class PolicyBoard {
 public:
  PolicyBoard(const Knobs* knobs, std::vector<std::unique_ptr<Engine>>* engines) : knobs_(knobs), engines_(engines) {}

  // Loads the policies that the settings name, before the engines start.
  bool start(std::string* error);
  PolicySet defaults() const;

  // Chooses policies by a text such as "window=dctcp path=reps" or "class 3" (those of a traffic class). The empty text
  // and an unknown class choose the defaults.
  Status choose(const std::string& text, PolicySet* out, std::string* error);

  // Changes a policy. `flows`: the flows of one connection; null: all present and future flows without a choice of
  // their own.
  Status change(const std::string& family, const std::string& text, PolicyChange what,
                const std::vector<FlowRef>* flows, std::uint64_t connection, std::string* error);
  std::vector<PolicyInfo> describe(const std::vector<FlowRef>* flows, std::uint64_t connection);

 private:
  void keep(PolicyRef* made);
  PolicyRef find(core::PolicyChoice choice) const;
  core::PolicyChoice in_force(policy::Family family, const std::vector<FlowRef>* flows, std::uint64_t connection);
  void sweep();

  const Knobs* knobs_;
  std::vector<std::unique_ptr<Engine>>* engines_;
  mutable std::mutex mutex_;
  PolicySet defaults_;
  std::map<std::int64_t, PolicySet> classes_;
  std::vector<PolicyRef> kept_;  // all policies that were handed out and may be in use
};

}  // namespace weft::engine
