// Python bindings of the benchmark of the protocol core. The benchmark runs without the GIL.
#include "bench/native/loops/core_bench.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {

void bind_core_bench(py::module_& module) {
  module.def(
      "bench_core",
      [](std::int64_t segments, std::int64_t segment_bytes, std::int64_t paths,
         const std::map<std::string, std::string>& policies) {
        engine::Knobs knobs;
        std::string error;
        Status status = engine::load_knobs(&knobs, &error);
        for (const auto& [family, name] : policies) {
          if (status == Status::ok) status = engine::set_knob(&knobs, family + "_policy", name, &error);
        }
        bench::CoreBenchResult result;
        if (status == Status::ok) {
          const Unlocked others_run;
          status = bench::bench_core(knobs, segments, segment_bytes, paths, &result, &error);
        }
        if (status != Status::ok) throw std::invalid_argument(error.empty() ? status_text(status) : error);
        py::dict out;
        out["ns_per_segment"] = result.ns_per_segment;
        out["segments"] = result.segments;
        out["acks"] = result.acks;
        out["resent"] = result.resent;
        return out;
      },
      py::arg("segments"), py::arg("segment_bytes"), py::arg("paths"),
      py::arg("policies") = std::map<std::string, std::string>{},
      "CPU nanoseconds per segment, of both protocol cores together; segments pass through memory, in this thread.");
}

}  // namespace weft::bind
