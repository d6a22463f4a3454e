// Finds what the interfaces can carry that interface_choice.h chooses.
#include "native/datapath/udp/udp_devices.h"

#include <algorithm>
#include <functional>

#include "native/datapath/nccl_variables.h"
#include "native/datapath/udp/interface_choice.h"

namespace weft::datapath {

bool is_of_family(const SocketAddress& address, const Settings& settings) {
  const std::string family = settings.text("family");
  return family == "auto" || address.is_v6() == (family == "ipv6");
}

namespace {

void add_interface(const Settings& settings, const ChosenInterface& chosen, DeviceState* device) {
  const Interface& interface = *chosen.interface;
  const bool v6 = chosen.address.is_v6();
  const std::uint32_t segment = datagram_bytes(settings, interface.mtu_bytes, v6);
  const auto train = static_cast<std::uint32_t>(train_bytes_max(interface, v6));
  const bool first = device->places.empty();
  device->places.push_back({chosen.address, interface.index, {}});
  device->segment_bytes = first ? segment : std::min(device->segment_bytes, segment);
  device->train_bytes = first ? train : std::min(device->train_bytes, train);
  Device& info = device->info;
  info.name += (first ? "" : "+") + interface.name;
  info.speed_mbps += interface.speed_mbps;
  info.mtu_bytes = first ? interface.mtu_bytes : std::min(info.mtu_bytes, interface.mtu_bytes);
  if (first) {
    info.address = chosen.address.text();
    info.pci_path = interface.pci_path;
  }
  info.guid = std::hash<std::string>{}(info.name + info.address);
}

}  // namespace

std::uint32_t datagram_bytes(const Settings& settings, std::int64_t mtu_bytes, bool v6) {
  const std::int64_t most = std::min<std::int64_t>(mtu_bytes - (v6 ? 48 : 28), kSegmentBytesMax);
  const std::int64_t cap = settings.number("segment_bytes");
  const std::int64_t wanted = cap != 0 ? cap : kSegmentBytesMax;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(std::min(most, wanted), 256));
}

bool find_interfaces(const Settings& settings, Found* out, std::string* error) {
  const std::vector<Interface> interfaces = list_interfaces(error);
  if (interfaces.empty()) return false;
  InterfaceChoice choice;
  const InterfaceWish wish{settings.text("interfaces"), settings.text("family"), nccl_variable("NCCL_SOCKET_IFNAME"),
                           nccl_variable("NCCL_SOCKET_FAMILY")};
  if (!choose_interfaces(interfaces, wish, &choice, error)) return false;
  if (!choice.warning.empty()) out->warning += (out->warning.empty() ? "" : "; ") + choice.warning;
  for (const std::vector<ChosenInterface>& joined : choice.devices) {
    DeviceState device;
    for (const ChosenInterface& each : joined) add_interface(settings, each, &device);
    out->devices.push_back(device);
  }
  return true;
}

}  // namespace weft::datapath
