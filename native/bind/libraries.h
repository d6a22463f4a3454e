// Helpers for bindings that take policies by name: they find policy libraries and keep them loaded.
#pragma once

#include <pybind11/pybind11.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "native/core/types.h"
#include "native/engine/policies/policy_choice.h"
#include "native/policy/loader.h"

namespace weft::bind {

using Libraries = std::vector<std::shared_ptr<const policy::Library>>;

inline policy::Family family_of(const std::string& name) {
  for (const auto family :
       {policy::Family::window, policy::Family::credit, policy::Family::path, policy::Family::loss}) {
    if (name == policy::family_name(family)) return family;
  }
  throw pybind11::value_error("no policy family '" + name + "': choose one of window, credit, path, loss");
}

// Finds a policy's library and adds it to `libraries`, which must live as long as the returned choice, because the
// choice points into the library.
inline core::PolicyChoice find_policy(policy::Family family, const std::string& name,
                                      const std::vector<std::string>& directories, Libraries* libraries) {
  std::string error;
  auto library = policy::find(family, name, directories, &error);
  if (library == nullptr) throw pybind11::value_error(error);
  libraries->push_back(library);
  return {&library->descriptor(), nullptr};
}

// Returns the member of `owner` that belongs to a policy family, such as owner.window.
template <class Owner>
auto& place_of(Owner& owner, policy::Family family) {
  switch (family) {
    case policy::Family::window:
      return owner.window;
    case policy::Family::path:
      return owner.path;
    case policy::Family::loss:
      return owner.loss;
    case policy::Family::credit:
      break;
  }
  return owner.credit;
}

// The libraries and parameters of chosen policies. A plan keeps them because its policy choices point into them.
struct Chosen {
  Libraries libraries;
  std::vector<std::shared_ptr<std::vector<core::i64>>> params;
  std::vector<engine::PolicyRef> by_text;
};

// Chooses a policy of `owner` by a text such as "swift:increase_segments=8", as in the settings. Returns the policy's
// name. `chosen` must live as long as the choice.
template <class Owner>
std::string choose_text(Chosen* chosen, Owner& owner, const std::string& family, const std::string& text,
                        const std::vector<std::string>& directories) {
  const policy::Family which = family_of(family);
  engine::PolicyRef made;
  std::string error;
  if (!engine::choose_policy(which, text, directories, &made, &error)) throw pybind11::value_error(error);
  place_of(owner, which) = made == nullptr ? core::PolicyChoice{} : made->choice();
  if (made == nullptr) return "none";
  chosen->by_text.push_back(made);
  return made->library->descriptor().name;
}

template <class Plan>
void choose(Plan& plan, const std::string& family, const std::string& name, const std::vector<std::string>& directories,
            const std::string& params) {
  const policy::Family which = family_of(family);
  core::PolicyChoice choice = find_policy(which, name, directories, &plan.chosen.libraries);
  if (!params.empty()) {
    if (params.size() != choice.descriptor->params_bytes) {
      throw pybind11::value_error("the parameters of " + name + " take " +
                                  std::to_string(choice.descriptor->params_bytes) + " bytes, not " +
                                  std::to_string(params.size()));
    }
    auto words = std::make_shared<std::vector<core::i64>>((params.size() + 7) / 8);
    std::memcpy(words->data(), params.data(), params.size());
    choice.params = words->data();
    plan.chosen.params.push_back(std::move(words));
  }
  place_of(plan, which) = choice;
}

}  // namespace weft::bind
