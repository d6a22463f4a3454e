// A Python extension module that replaces transport._native in tests/swarm: the fabric simulator, and what
// transport.trace imports.
#include <pybind11/pybind11.h>

namespace weft::bind {
void bind_crc32c(pybind11::module_& module);
void bind_fabric(pybind11::module_& module);
void bind_trace_records(pybind11::module_& module);
}  // namespace weft::bind

PYBIND11_MODULE(_native, module) {
  weft::bind::bind_crc32c(module);
  weft::bind::bind_fabric(module);
  weft::bind::bind_trace_records(module);
}
