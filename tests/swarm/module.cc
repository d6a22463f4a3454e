// A Python extension module with only the fabric simulator, which replaces transport._native in tests/swarm.
#include <pybind11/pybind11.h>

namespace weft::bind {
void bind_fabric(pybind11::module_& module);
}  // namespace weft::bind

PYBIND11_MODULE(_native, module) { weft::bind::bind_fabric(module); }
