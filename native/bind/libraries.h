// What bindings that take policies by name share: the family a word means, the library a name means, who keeps it.
// Holds no binding of its own.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "native/core/types.h"
#include "native/policy/loader.h"

namespace weft::bind {

using Libraries = std::vector<std::shared_ptr<const policy::Library>>;

inline policy::Family family_of(const std::string& name) {
  for (const auto family :
       {policy::Family::window, policy::Family::credit, policy::Family::path, policy::Family::loss}) {
    if (name == policy::family_name(family)) return family;
  }
  throw pybind11::value_error("no policy family '" + name + "': window, credit, path or loss");
}

// The library is kept in `libraries`; whoever holds the choice holds them.
inline core::PolicyChoice find_policy(policy::Family family, const std::string& name,
                                      const std::vector<std::string>& directories, Libraries* libraries) {
  std::string error;
  auto library = policy::find(family, name, directories, &error);
  if (library == nullptr) throw pybind11::value_error(error);
  libraries->push_back(library);
  return {&library->descriptor(), nullptr};
}

template <class Owner, class Choice>
Choice* place_of(Owner& owner, policy::Family family, Choice Owner::* window, Choice Owner::* path,
                 Choice Owner::* loss, Choice Owner::* credit) {
  switch (family) {
    case policy::Family::window:
      return &(owner.*window);
    case policy::Family::path:
      return &(owner.*path);
    case policy::Family::loss:
      return &(owner.*loss);
    case policy::Family::credit:
      break;
  }
  return &(owner.*credit);
}

}  // namespace weft::bind
