// Applies policy changes on each engine's thread, between two loop iterations. Dials and listeners hold references to
// their policies until their flows are open; sweep() explains why no policy in use is unloaded.
#include "native/engine/policies/policy_board.h"

#include <algorithm>

namespace weft::engine {
namespace {

constexpr std::size_t kSweepAt = 16;

}  // namespace

bool PolicyBoard::start(std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!choose_policies(*knobs_, &defaults_, error)) return false;
  if (!choose_classes(knobs_->traffic_classes, policy_directories(*knobs_), &classes_, error)) return false;
  kept_ = {defaults_.window, defaults_.path, defaults_.loss};
  if (defaults_.credit != nullptr) kept_.push_back(defaults_.credit);
  return true;
}

PolicySet PolicyBoard::defaults() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return defaults_;
}

Status PolicyBoard::choose(const std::string& text, PolicySet* out, std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  constexpr std::string_view kClass = "class ";
  if (text.rfind(kClass, 0) == 0) {
    const auto found = classes_.find(std::strtoll(text.c_str() + kClass.size(), nullptr, 10));
    if (found != classes_.end()) *out = found->second;
  } else if (!choose_set(text, policy_directories(*knobs_), out, error)) {
    return Status::invalid_argument;
  }
  for (PolicyRef* made : {&out->window, &out->path, &out->loss, &out->credit}) keep(made);
  if (kept_.size() > kSweepAt) sweep();
  return Status::ok;
}

// Replaces `*made` by an equal earlier choice, if there is one, because connections share a peer only if their path
// policies are the same object.
void PolicyBoard::keep(PolicyRef* made) {
  if (*made == nullptr) return;
  for (const PolicyRef& each : kept_) {
    if (&each->library->descriptor() != &(*made)->library->descriptor() || each->params != (*made)->params) continue;
    *made = each;
    return;
  }
  kept_.push_back(*made);
}

PolicyRef PolicyBoard::find(core::PolicyChoice choice) const {
  const auto matches = [&](const PolicyRef& each) {
    return each->choice().descriptor == choice.descriptor && each->choice().params == choice.params;
  };
  const auto found = std::find_if(kept_.begin(), kept_.end(), matches);
  if (found != kept_.end()) return *found;
  if (choice.descriptor == nullptr) return nullptr;
  auto fixed = std::make_shared<ChosenPolicy>();  // `choice` is `fixed`, which replaced a failed policy
  fixed->library = policy::Library::linked_in(policy::fixed(static_cast<policy::Family>(choice.descriptor->family)));
  const auto* words = static_cast<const std::int64_t*>(choice.params);
  if (words != nullptr) fixed->params.assign(words, words + choice.descriptor->params_bytes / 8);
  return fixed;
}

core::PolicyChoice PolicyBoard::in_force(policy::Family family, const std::vector<FlowRef>* flows,
                                         std::uint64_t connection) {
  if (flows == nullptr) {
    const PolicyRef& of_all = defaults_.of(family);
    return of_all == nullptr ? core::PolicyChoice{} : of_all->choice();
  }
  core::PolicyChoice choice;
  const FlowRef first = flows->front();
  first.engine->call([&] {
    if (first.engine->owner_id(first.flow) == connection)
      choice = first.engine->stack().policies().in_force(family, first.flow);
  });
  return choice;
}

Status PolicyBoard::change(const std::string& family_word, const std::string& text, PolicyChange what,
                           const std::vector<FlowRef>* flows, std::uint64_t connection, std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  policy::Family family{};
  if (!family_of(family_word, &family)) {
    *error = "no policy family '" + family_word + "': choose one of window, path, loss, credit";
    return Status::invalid_argument;
  }
  PolicyRef made;
  const bool params_only = what == PolicyChange::params;
  if (params_only) {
    const PolicyRef now = find(in_force(family, flows, connection));
    if (now == nullptr) {
      *error = "no " + family_word + " policy is in use, so it has no parameters to change: choose a policy first";
      return Status::invalid_argument;
    }
    if (!change_params(now, text, &made, error)) return Status::invalid_argument;
  } else if (!choose_policy(family, text, policy_directories(*knobs_), &made, error)) {
    return Status::invalid_argument;
  }
  keep(&made);
  const core::PolicyChoice choice = made == nullptr ? core::PolicyChoice{} : made->choice();
  bool ok = true;
  if (flows == nullptr) {
    defaults_.of(family) = made;
    for (const auto& engine : *engines_) {
      engine->call(
          [&] { ok = engine->stack().policies().set_default(engine->time_ns(), family, choice, params_only) && ok; });
    }
  } else {
    for (const FlowRef& flow : *flows) {
      flow.engine->call([&] {
        if (flow.engine->owner_id(flow.flow) != connection) return;
        ok = flow.engine->stack().policies().set(flow.engine->time_ns(), family, flow.flow, choice, params_only) && ok;
      });
    }
  }
  sweep();
  if (!ok) *error = "out of memory: flows for which there was not enough memory keep the old policy";
  return ok ? Status::ok : Status::out_of_memory;
}

std::vector<PolicyInfo> PolicyBoard::describe(const std::vector<FlowRef>* flows, std::uint64_t connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<PolicyInfo> all;
  for (const auto family :
       {policy::Family::window, policy::Family::path, policy::Family::loss, policy::Family::credit}) {
    const PolicyRef found = find(in_force(family, flows, connection));
    if (found == nullptr) continue;
    const policy::Descriptor& descriptor = found->library->descriptor();
    PolicyInfo info;
    info.family = policy::family_name(family);
    info.name = descriptor.name;
    info.source_sha256 = descriptor.source_sha256;
    info.params_fields = descriptor.params_fields;
    info.params.assign(reinterpret_cast<const char*>(found->params.data()), found->params.size() * 8);
    all.push_back(std::move(info));
  }
  return all;
}

// Unloads unused policies. First it finds candidates, to which only the board has a reference; while the mutex is
// locked, no other thread can get one. Then it asks each engine which policies are in use. Threads that pass a policy
// to an engine keep their reference until Engine::call() returns, so the engine's answer includes it.
void PolicyBoard::sweep() {
  std::vector<const ChosenPolicy*> candidates;
  for (const PolicyRef& each : kept_) {
    if (each.use_count() == 1) candidates.push_back(each.get());
  }
  if (candidates.empty()) return;
  std::vector<core::PolicyChoice> used;
  for (const auto& engine : *engines_) {
    engine->call([&] { engine->stack().policies().list_in_use(&used); });
  }
  const auto unused = [&](const ChosenPolicy* policy) {
    const core::PolicyChoice mine = policy->choice();
    return std::none_of(used.begin(), used.end(), [&](const core::PolicyChoice& other) {
      return other.descriptor == mine.descriptor && (other.params == nullptr || other.params == mine.params);
    });
  };
  std::erase_if(kept_, [&](const PolicyRef& each) {
    return std::find(candidates.begin(), candidates.end(), each.get()) != candidates.end() && unused(each.get());
  });
}

}  // namespace weft::engine
