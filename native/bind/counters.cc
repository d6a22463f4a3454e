// Binds the counters and the outcomes: attributes and sentences come from the native tables.
// Converts and calls; counts nothing itself.
#include "native/engine/counters.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "native/core/status.h"

namespace py = pybind11;

namespace weft::bind {

void bind_counters(py::module_& module) {
#define WEFT_BIND_COUNTER(name, sentence) counters.def_readonly(#name, &Counters::name, sentence);
#define WEFT_COUNTER_NAME(name, sentence) names.append(#name);
  {
    using Counters = engine::PathCounters;
    py::class_<Counters> counters(module, "PathCounters", "Counters of one path of a connection.");
    WEFT_PATH_COUNTER_TABLE(WEFT_BIND_COUNTER)
    py::list names;
    WEFT_PATH_COUNTER_TABLE(WEFT_COUNTER_NAME)
    counters.attr("FIELDS") = py::tuple(names);
  }
  {
    using Counters = engine::ConnectionCounters;
    py::class_<Counters> counters(module, "ConnectionCounters", "Counters of one connection.");
    WEFT_CONNECTION_COUNTER_TABLE(WEFT_BIND_COUNTER)
    counters.def_readonly("paths", &Counters::paths, "one PathCounters a path");
    py::list names;
    WEFT_CONNECTION_COUNTER_TABLE(WEFT_COUNTER_NAME)
    counters.attr("FIELDS") = py::tuple(names);
  }
  {
    using Counters = engine::EngineCounters;
    py::class_<Counters> counters(module, "EngineCounters", "Counters of all engines of an endpoint.");
    WEFT_ENGINE_COUNTER_TABLE(WEFT_BIND_COUNTER)
    py::list names;
    WEFT_ENGINE_COUNTER_TABLE(WEFT_COUNTER_NAME)
    counters.attr("FIELDS") = py::tuple(names);
  }
#undef WEFT_COUNTER_NAME
#undef WEFT_BIND_COUNTER
  module.def(
      "status_table",
      [] {
        py::list rows;
#define WEFT_STATUS_ROW(name, number, text) rows.append(py::make_tuple(#name, number, text));
        WEFT_STATUS_TABLE(WEFT_STATUS_ROW)
#undef WEFT_STATUS_ROW
        return rows;
      },
      "Every outcome: (name, code, text).");
}

}  // namespace weft::bind
