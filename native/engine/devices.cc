// Names to interfaces to addresses; one address an interface, IPv4 before IPv6 unless the knob says otherwise.
// Nothing is guessed: an interface that is named but down or without an address is an error.
#include "native/engine/devices.h"

#include <algorithm>
#include <functional>

namespace weft::engine {
namespace {

constexpr std::int64_t kSegmentBytesCap = 9000;  // docs/DIARY.md: larger buys little and costs more when lost

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text + separator) {
    if (c != separator) {
      if (c != ' ') part += c;
      continue;
    }
    if (!part.empty()) parts.push_back(part);
    part.clear();
  }
  return parts;
}

bool fits(const datapath::SocketAddress& address, AddressFamily family) {
  return family == AddressFamily::automatic || address.is_v6() == (family == AddressFamily::ipv6);
}

std::string describe(const std::vector<datapath::Interface>& interfaces) {
  std::string text;
  for (const auto& each : interfaces) {
    if (!text.empty()) text += ", ";
    text += each.name + (each.up ? "" : " (down)") + (each.addresses.empty() ? " (no address)" : "");
  }
  return text;
}

bool add_interface(const Knobs& knobs, const datapath::Interface& interface, DeviceState* device) {
  const auto address = std::find_if(interface.addresses.begin(), interface.addresses.end(),
                                    [&](const auto& each) { return fits(each, knobs.family); });
  if (!interface.up || address == interface.addresses.end()) return false;
  const std::uint32_t segment = datagram_bytes(knobs, interface.mtu_bytes, address->is_v6());
  const auto train = static_cast<std::uint32_t>(datapath::train_bytes_max(interface, address->is_v6()));
  const bool first = device->places.empty();
  device->places.push_back({*address, interface.index, {}, 0, -1});
  device->segment_bytes = first ? segment : std::min(device->segment_bytes, segment);
  device->train_bytes = first ? train : std::min(device->train_bytes, train);
  Device& info = device->info;
  info.name += (first ? "" : "+") + interface.name;
  info.speed_mbps += interface.speed_mbps;
  info.mtu_bytes = first ? interface.mtu_bytes : std::min(info.mtu_bytes, interface.mtu_bytes);
  if (first) {
    info.address = address->text();
    info.pci_path = interface.pci_path;
  }
  info.guid = std::hash<std::string>{}(info.name + info.address);
  return true;
}

}  // namespace

std::uint32_t datagram_bytes(const Knobs& knobs, std::int64_t mtu_bytes, bool v6) noexcept {
  const std::int64_t most = std::min<std::int64_t>(mtu_bytes - (v6 ? 48 : 28), kSegmentBytesMax);
  const std::int64_t wanted = knobs.segment_bytes != 0 ? knobs.segment_bytes : kSegmentBytesCap;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(std::min(most, wanted), 256));
}

bool find_devices(const Knobs& knobs, std::vector<DeviceState>* out, std::string* error) {
  const std::vector<datapath::Interface> interfaces = datapath::list_interfaces(error);
  if (interfaces.empty()) return false;
  out->clear();
  for (const std::string& name : split(knobs.interfaces, ',')) {
    DeviceState device;
    for (const std::string& part : split(name, '+')) {
      const auto place =
          std::find_if(interfaces.begin(), interfaces.end(), [&](const auto& each) { return each.name == part; });
      if (place == interfaces.end() || !add_interface(knobs, *place, &device)) {
        *error = "interface '" + part + "' " +
                 (place == interfaces.end() ? "does not exist" : "is down or has no address of the family asked for") +
                 "; there is " + describe(interfaces);
        return false;
      }
    }
    if (!device.places.empty()) out->push_back(device);
  }
  for (const bool loopback : {false, true}) {
    if (!out->empty()) break;
    for (const auto& each : interfaces) {
      DeviceState device;
      if (each.loopback == loopback && add_interface(knobs, each, &device)) out->push_back(device);
    }
  }
  if (!out->empty()) return true;
  *error = "no interface is up with an address of the family asked for; there is " + describe(interfaces);
  return false;
}

}  // namespace weft::engine
