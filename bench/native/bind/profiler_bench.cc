// Python bindings of the benchmark of the NCCL profiler. The benchmark runs without the GIL.
#include "bench/native/loops/profiler_bench.h"

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {

void bind_profiler_bench(py::module_& module) {
  module.def(
      "bench_profiler",
      [](const std::string& library, std::int64_t operations, int channels, int steps) {
        bench::ProfilerBenchResult result;
        std::string error;
        Status status = Status::ok;
        {
          const Unlocked others_run;
          status = bench::bench_profiler(library, operations, channels, steps, &result, &error);
        }
        if (status != Status::ok) throw std::invalid_argument(error);
        py::dict out;
        out["ns_per_operation"] = result.ns_per_operation;
        out["calls_per_operation"] = result.calls_per_operation;
        return out;
      },
      py::arg("library"), py::arg("operations"), py::arg("channels"), py::arg("steps"),
      "What the profiler's calls for one all-reduce cost the thread that makes them.");
}

}  // namespace weft::bind
