// Python bindings of the table of settings (WEFT_* variables) and of their values in the environment.
#include "native/engine/knobs.h"

#include <pybind11/pybind11.h>

#include <string>

namespace py = pybind11;

namespace weft::bind {

void bind_knobs(py::module_& module) {
  module.def(
      "knob_table",
      [] {
        py::list rows;
        for (const engine::KnobInfo& row : engine::knob_table()) {
          py::list keys;
          for (const engine::KeyInfo& key : row.keys) {
            keys.append(py::make_tuple(key.name, key.type, key.unit, key.value, key.range, key.sentence));
          }
          rows.append(py::make_tuple(row.field, row.variable, row.set_by, row.type, row.unit, row.default_value,
                                     row.range, row.wild, row.sentence, keys));
        }
        return rows;
      },
      "Every knob: (field, variable, set_by, type, unit, default, range, wild: values for randomised tests, sentence, "
      "keys); a key, such as `stall` in WEFT_PEER_TIMEOUT, is (name, type, unit, default, range, sentence).");
  module.def(
      "load_knobs",
      [] {
        engine::Knobs knobs;
        std::string error;
        if (engine::load_knobs(&knobs, &error) != Status::ok) throw py::value_error(error);
        py::dict values;
        for (const engine::KnobInfo& row : engine::knob_table()) {
          values[py::str(row.field)] = engine::knob_value(knobs, row.field);
        }
        return values;
      },
      "The field name of each knob -> its value in force, as text; ValueError if an environment variable is invalid.");
}

}  // namespace weft::bind
