// The extension module _loops of benchmarks, which bench/lib/loops.py loads from the build tree.
#include <pybind11/pybind11.h>

namespace weft::bind {
void bind_core_bench(pybind11::module_& module);
void bind_datagram_bench(pybind11::module_& module);
void bind_gpu_bench(pybind11::module_& module);
void bind_profiler_bench(pybind11::module_& module);
void bind_rdma_bench(pybind11::module_& module);
void bind_stages_bench(pybind11::module_& module);
void bind_trips_bench(pybind11::module_& module);
}  // namespace weft::bind

PYBIND11_MODULE(_loops, module) {
  weft::bind::bind_core_bench(module);
  weft::bind::bind_datagram_bench(module);
  weft::bind::bind_gpu_bench(module);
  weft::bind::bind_profiler_bench(module);
  weft::bind::bind_rdma_bench(module);
  weft::bind::bind_stages_bench(module);
  weft::bind::bind_trips_bench(module);
}
