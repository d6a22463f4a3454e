// Python bindings that parse the choice of a policy, load it, or say why it cannot be used.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <tuple>
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

std::tuple<std::string, std::string, std::string> policy_parts(const std::string& text) {
  const engine::ChoiceParts parts = engine::parts_of(text);
  return {std::string(parts.name), parts.has_params ? ":" : "", std::string(parts.params)};
}

std::vector<std::string> policy_choices(const std::string& text) {
  const std::vector<std::string_view> choices = engine::choices_of(text);
  return {choices.begin(), choices.end()};
}

py::bytes policy_params(const std::string& name, const std::string& fields, const std::string& defaults,
                        const std::string& text, const std::string& presets) {
  policy::Descriptor descriptor{};
  descriptor.descriptor_bytes = sizeof descriptor;
  descriptor.presets = presets.c_str();
  name.copy(descriptor.name, sizeof descriptor.name - 1);
  descriptor.params_bytes = static_cast<std::uint32_t>(defaults.size());
  descriptor.params_fields = fields.c_str();
  std::vector<std::int64_t> words(defaults.size() / 8);
  if (!words.empty()) descriptor.params_default = defaults.data();
  if (!words.empty()) std::memcpy(words.data(), defaults.data(), words.size() * 8);
  std::string error;
  if (!engine::set_params(descriptor, text, &words, &error)) throw py::value_error(error);
  return {reinterpret_cast<const char*>(words.data()), words.size() * 8};
}

}  // namespace

void bind_policies(py::module_& module) {
  module.def("policy_problem", &policy_problem, py::arg("family"), py::arg("text"),
             py::arg("directories") = std::vector<std::string>(),
             "Loads the policy that `text` names, as a knob does, and returns why it cannot be used; empty: it can.");
  module.def(
      "policy_parts", &policy_parts, py::arg("text"),
      "Splits a choice such as \"swift:increase_segments=8\" into the name or path of the policy, the colon (empty "
      "if there is none), and the parameters.");
  module.def("policy_choices", &policy_choices, py::arg("text"),
             "Splits a set of policies such as \"window=dctcp path=reps\" into one text for each policy.");
  module.def("policy_params", &policy_params, py::arg("name"), py::arg("fields"), py::arg("defaults"), py::arg("text"),
             py::arg("presets") = "",
             "Returns the bytes of `defaults`, a policy's default parameters, changed by the parameters in `text`. "
             "`fields`: a line for each parameter: name, kind, offset, count. `presets`: a line for each preset: name, "
             "parameters. ValueError if `text` is wrong.");
}

}  // namespace weft::bind
