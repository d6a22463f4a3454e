// Defines the Python extension module; each bound native header has a file of its own.
#include <pybind11/pybind11.h>

namespace weft::bind {
void bind_counters(pybind11::module_& module);
void bind_crc32c(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_fabric(pybind11::module_& module);
void bind_interfaces(pybind11::module_& module);
void bind_knobs(pybind11::module_& module);
void bind_policies(pybind11::module_& module);
void bind_rdma(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_runtime(pybind11::module_& module);
void bind_trace_records(pybind11::module_& module);
}  // namespace weft::bind

PYBIND11_MODULE(_native, module) {
  weft::bind::bind_counters(module);
  weft::bind::bind_crc32c(module);
  weft::bind::bind_trace_records(module);
  weft::bind::bind_knobs(module);
  weft::bind::bind_policies(module);
  weft::bind::bind_rdma(module);
  weft::bind::bind_fabric(module);
  weft::bind::bind_replay(module);
  weft::bind::bind_device(module);
  weft::bind::bind_devices(module);
  weft::bind::bind_interfaces(module);
  weft::bind::bind_runtime(module);
}
