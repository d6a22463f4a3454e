// Which policies decide in this process: the defaults, those of each traffic class, and every change while flows live.
// Owns the libraries; unloads one only when no engine refers to it any more. Any thread but an engine's.
//
// What it hands out is an owning reference: whoever gives the raw choice in it to an engine, by Engine::call(), holds
// the reference until that call is over (decision 0008).
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

  // Before the engines start: what the knobs name.
  bool start(std::string* error);
  PolicySet defaults() const;

  // "window=dctcp path=reps", or "class 3" of a traffic class (one that no knob names: the defaults), or "".
  Status choose(const std::string& text, PolicySet* out, std::string* error);

  // For every flow without a choice of its own, now and later; or for the flows of one connection.
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
  std::vector<PolicyRef> kept_;  // whatever was ever handed out and may still be in use
};

}  // namespace weft::engine
