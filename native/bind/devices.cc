// Python bindings of what a runtime will use: devices, cores, and how many descriptors it needs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>

#include "native/bind/held.h"
#include "native/bind/readable.h"
#include "native/engine/setup/usable_cores.h"
#include "native/message/runtime.h"

namespace weft::bind {
namespace {

py::tuple descriptors() {
  engine::Knobs knobs;
  std::string error;
  engine::DescriptorNeed need;
  Status status = engine::load_knobs(&knobs, &error);
  if (status == Status::ok) status = message::Runtime::descriptor_need(knobs, &need, &error);
  const engine::DescriptorState state = engine::descriptor_state();
  engine::DescriptorNeed least = need;
  least.paths = std::min<std::int64_t>(need.paths, 1);
  return py::make_tuple(code(status), readable(error), least.total(), need.total(),
                        py::make_tuple(state.soft, state.hard, state.open, engine::kProgramDescriptorsMax));
}

}  // namespace

void bind_devices(py::module_& module) {
  py::class_<datapath::Device>(module, "Device", "One NIC, or several joined by the knob `interfaces`.")
      .def_readonly("name", &datapath::Device::name)
      .def_readonly("address", &datapath::Device::address)
      .def_readonly("pci_path", &datapath::Device::pci_path)
      .def_readonly("guid", &datapath::Device::guid)
      .def_readonly("speed_mbps", &datapath::Device::speed_mbps)
      .def_readonly("mtu_bytes", &datapath::Device::mtu_bytes)
      .def("__repr__", [](const datapath::Device& self) { return "<Device " + self.name + " " + self.address + ">"; });
  module.def(
      "descriptors", &descriptors,
      "(status, error, descriptors needed with one path, descriptors needed with all paths, (soft limit, hard limit, "
      "open now, most that weft leaves to the program)).");
  module.def("usable_cores", &engine::usable_cores,
             "Number of CPUs in the affinity mask, or the CPU quota of the control groups if that is less.");
}

}  // namespace weft::bind
