// Python binding of the network interfaces of this host, and of what the choice of devices says of each.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "native/datapath/udp/interface_choice.h"
#include "native/datapath/udp/interface_sysfs.h"

namespace py = pybind11;

namespace weft::bind {

void bind_interfaces(py::module_& module) {
  using I = datapath::Interface;
  py::class_<I>(module, "Interface", "A network interface of this host.")
      .def_readonly("name", &I::name)
      .def_readonly("up", &I::up)
      .def_readonly("pci_path", &I::pci_path)
      .def_readonly("speed_mbps", &I::speed_mbps)
      .def_readonly("mtu_bytes", &I::mtu_bytes)
      .def_property_readonly("addresses",
                             [](const I& self) {
                               std::vector<std::string> texts;
                               for (const auto& each : self.addresses) texts.push_back(each.address.text());
                               return texts;
                             })
      .def_property_readonly(
          "what", [](const I& self) { return datapath::what_it_is(self); }, "What it is, as in 'bond of eth0, eth1'.")
      .def_property_readonly(
          "why_left_out", [](const I& self) { return datapath::why_left_out(self, "auto"); },
          "Why it is not used unless a setting names it; empty: it is used.")
      .def("__repr__", [](const I& self) { return "<Interface " + self.name + ">"; });
  module.def(
      "interfaces",
      [] {
        std::string error;
        return datapath::list_interfaces(&error);
      },
      "All network interfaces, in the kernel's order; empty if they cannot be listed.");
}

}  // namespace weft::bind
