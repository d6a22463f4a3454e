// Python bindings that load a policy, or say why it cannot be used.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "native/bind/libraries.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

std::string policy_problem(const std::string& family, const std::string& text,
                           const std::vector<std::string>& directories) {
  engine::PolicyRef made;
  std::string error;
  return engine::choose_policy(family_of(family), text, directories, &made, &error) ? "" : error;
}

}  // namespace

void bind_policies(py::module_& module) {
  module.def("policy_problem", &policy_problem, py::arg("family"), py::arg("text"),
             py::arg("directories") = std::vector<std::string>(),
             "Loads the policy that `text` names, as a knob does, and returns why it cannot be used; empty: it can.");
}

}  // namespace weft::bind
