// Python binding of the network interfaces of this host, and of what the choice of devices says of each.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "native/datapath/nccl_variables.h"
#include "native/datapath/udp/interface_choice.h"
#include "native/datapath/udp/interface_sysfs.h"
#include "native/datapath/udp/reverse_path.h"
#include "native/datapath/xdp/xdp_devices.h"

namespace py = pybind11;

namespace weft::bind {

namespace {

struct BoundInterface {
  datapath::Interface of;
  std::string why_left_out;
};

std::vector<BoundInterface> interfaces(const std::string& family) {
  const datapath::InterfaceWish wish{.family = family, .nccl_family = datapath::nccl_variable("NCCL_SOCKET_FAMILY")};
  std::string error;
  std::vector<BoundInterface> all;
  for (const datapath::Interface& each : datapath::list_interfaces(&error)) {
    all.push_back({each, datapath::why_left_out(each, datapath::family_of(wish))});
  }
  return all;
}

std::string reverse_path_problem(const std::string& address) {
  datapath::SocketAddress parsed;
  std::string error;
  const std::string host = address.substr(0, address.find('%'));
  if (!datapath::resolve(host, 0, AF_UNSPEC, &parsed, &error)) return {};
  return datapath::reverse_path_problem(datapath::list_interfaces(&error), parsed);
}

std::string why_no_xdp() {
  std::string error;
  datapath::probe_xdp(&error);
  return error;
}

}  // namespace

void bind_interfaces(py::module_& module) {
  using I = BoundInterface;
  py::class_<I>(module, "Interface", "A network interface of this host.")
      .def_property_readonly("name", [](const I& self) { return self.of.name; })
      .def_property_readonly("up", [](const I& self) { return self.of.up; })
      .def_property_readonly("pci_path", [](const I& self) { return self.of.pci_path; })
      .def_property_readonly("speed_mbps", [](const I& self) { return self.of.speed_mbps; })
      .def_property_readonly("mtu_bytes", [](const I& self) { return self.of.mtu_bytes; })
      .def_property_readonly(
          "below", [](const I& self) { return self.of.below; }, "Interfaces on which a bond, VLAN or bridge lies.")
      .def_property_readonly("addresses",
                             [](const I& self) {
                               std::vector<std::string> texts;
                               for (const auto& each : self.of.addresses) texts.push_back(each.address.text());
                               return texts;
                             })
      .def_property_readonly(
          "what", [](const I& self) { return datapath::what_it_is(self.of); },
          "What it is, as in 'bond of eth0, eth1'.")
      .def_property_readonly(
          "why_not_xdp", [](const I& self) { return datapath::why_not_xdp(self.of); },
          "Why AF_XDP is not used on it; empty: it is used.")
      .def_readonly("why_left_out", &I::why_left_out,
                    "Why it is not used unless a setting names it; empty: it is used.")
      .def("__repr__", [](const I& self) { return "<Interface " + self.of.name + ">"; });
  module.def("interfaces", &interfaces, py::arg("family"),
             "All network interfaces, in the kernel's order; empty if they cannot be listed. family: the knob.");
  module.def("why_no_xdp", &why_no_xdp,
             "Why WEFT_DATAPATH=xdp does not work on this host for this process, with the remedy; empty: it does.");
  module.def("reverse_path_problem", &reverse_path_problem, py::arg("address"),
             "Why the kernel may drop packets to this address of this host, with the remedy; empty: it does not.");
}

}  // namespace weft::bind
