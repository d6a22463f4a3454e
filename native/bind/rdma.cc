// Python binding that asks which transports an RDMA port supports. To find out, it opens the device.
#include <pybind11/pybind11.h>

#include <string>

#include "native/datapath/verbs/verbs_port.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

py::tuple rdma_modes(const std::string& device, int port, int gid_index) {
  py::list names;
  std::string error;
  datapath::Place place;
  place.port = datapath::PortName{device, static_cast<std::uint8_t>(port), gid_index}.text();
  const datapath::Ibv* const library = datapath::load_ibv("", &error);
  if (library == nullptr) return py::make_tuple(names, error);
  for (const datapath::VerbsMode mode : datapath::probe_modes(library, place, &error)) {
    names.append(datapath::mode_name(mode));
  }
  return py::make_tuple(names, error);
}

}  // namespace

void bind_rdma(py::module_& module) {
  module.def("rdma_modes", &rdma_modes, py::arg("device"), py::arg("port"), py::arg("gid_index"),
             "(modes of queue pairs that the port supports with this GID, best first; why there is none, or empty).");
}

}  // namespace weft::bind
