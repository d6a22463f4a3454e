// Python bindings of counters and status codes; their names and docstrings come from the native tables.
#include "native/telemetry/counters.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "native/core/status.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

// Binds a struct of counters: one attribute per counter, and FIELDS with the names of all counters.
template <class Counters, class... Options>
class Binding {
 public:
  Binding(py::module_& module, const char* name, const char* doc) : type_(module, name, doc) {}
  void add(const char* name, std::int64_t Counters::* field, const char* sentence) {
    type_.def_readonly(name, field, sentence);
    names_.append(name);
  }
  void add(const char* name, telemetry::Histogram<std::int64_t> Counters::* field, const char* sentence) {
    const auto counts = [field](const Counters& counters) {
      py::tuple made(telemetry::kHistogramBuckets);
      for (std::size_t i = 0; i < made.size(); ++i) made[i] = (counters.*field).buckets[i];
      return made;
    };
    type_.def_property_readonly(name, counts, sentence);
    names_.append(name);
  }
  py::class_<Counters, Options...>& finish() {
    type_.attr("FIELDS") = py::tuple(names_);
    return type_;
  }

 private:
  py::class_<Counters, Options...> type_;
  py::list names_;
};

#define WEFT_BIND_COUNTER(name, unit, kind, sentence) binding.add(#name, &Counters::name, sentence);

void bind_scopes(py::module_& module) {
  using namespace telemetry;
  {
    using Counters = PathCounters;
    Binding<Counters> binding(module, "PathCounters", "Counters of one path to a peer.");
    WEFT_PATH_COUNTER_TABLE(WEFT_BIND_COUNTER)
    binding.finish();
  }
  {
    using Counters = FlowCounters;
    Binding<Counters> binding(module, "FlowCounters", "Counters of flows.");
    WEFT_FLOW_COUNTER_TABLE(WEFT_BIND_COUNTER)
    binding.finish();
  }
  {
    using Counters = ConnectionCounters;
    Binding<Counters> binding(module, "ConnectionCounters", "Counters of one connection: sums over its flows.");
    WEFT_FLOW_COUNTER_TABLE(WEFT_BIND_COUNTER)
    binding.finish().def_readonly("paths", &Counters::paths, "one PathCounters for each path");
  }
  {
    using Counters = EngineCounters;
    Binding<Counters> binding(module, "EngineCounters", "Counters of one engine, or of a stack of the simulator.");
    WEFT_ENGINE_COUNTER_TABLE(WEFT_BIND_COUNTER)
    binding.finish();
  }
  {
    using Counters = EndpointCounters;
    Binding<Counters> binding(module, "EndpointCounters", "Counters of an endpoint: sums over its engines.");
    WEFT_ENGINE_COUNTER_TABLE(WEFT_BIND_COUNTER)
    WEFT_PROCESS_COUNTER_TABLE(WEFT_BIND_COUNTER)
    binding.finish();
  }
}
#undef WEFT_BIND_COUNTER

py::list counter_table() {
  py::list rows;
#define WEFT_COUNTER_ROW(name, unit, kind, sentence) rows.append(py::make_tuple(scope, #name, #unit, #kind, sentence));
  const char* scope = "process";
  WEFT_PROCESS_COUNTER_TABLE(WEFT_COUNTER_ROW)
  scope = "engine";
  WEFT_ENGINE_COUNTER_TABLE(WEFT_COUNTER_ROW)
  scope = "peer";
  WEFT_PEER_COUNTER_TABLE(WEFT_COUNTER_ROW)
  scope = "path";
  WEFT_PATH_COUNTER_TABLE(WEFT_COUNTER_ROW)
  scope = "flow";
  WEFT_FLOW_COUNTER_TABLE(WEFT_COUNTER_ROW)
#undef WEFT_COUNTER_ROW
  return rows;
}

py::list status_table() {
  py::list rows;
#define WEFT_STATUS_ROW(name, number, text) rows.append(py::make_tuple(#name, number, text));
  WEFT_STATUS_TABLE(WEFT_STATUS_ROW)
#undef WEFT_STATUS_ROW
  return rows;
}

}  // namespace

void bind_counters(py::module_& module) {
  bind_scopes(module);
  module.def("counter_table", &counter_table, "Every counter: (scope, name, unit, kind, sentence).");
  module.def("status_table", &status_table, "Every status: (name, code, text).");
}

}  // namespace weft::bind
