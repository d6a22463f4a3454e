// Finds the interfaces that the knobs name, and picks one address of each: IPv4 before IPv6 unless the knob `family`
// says otherwise. A named interface that is down or has no address is an error.
#include "native/datapath/udp/udp_devices.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

bool is_of_family(const SocketAddress& address, const Settings& settings) {
  const std::string family = settings.text("family");
  return family == "auto" || address.is_v6() == (family == "ipv6");
}

namespace {

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const auto& each : interfaces) {
    if (!text.empty()) text += ", ";
    text += each.name + (each.up ? "" : " (down)") + (each.bridge ? " (a bridge)" : "") +
            (each.addresses.empty() ? " (no address)" : "");
  }
  return text;
}

bool add_interface(const Settings& settings, const Interface& interface, DeviceState* device) {
  const auto address = std::find_if(interface.addresses.begin(), interface.addresses.end(),
                                    [&](const auto& each) { return is_of_family(each, settings); });
  if (!interface.up || address == interface.addresses.end()) return false;
  const std::uint32_t segment = datagram_bytes(settings, interface.mtu_bytes, address->is_v6());
  const auto train = static_cast<std::uint32_t>(train_bytes_max(interface, address->is_v6()));
  const bool first = device->places.empty();
  device->places.push_back({*address, interface.index, {}});
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

bool begins_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

// Parses NCCL_SOCKET_IFNAME: a list of name prefixes, or of whole names after '='; after '^' the list names interfaces
// that must not be used.
class NcclNames {
 public:
  explicit NcclNames(const char* text) : given_(text != nullptr && *text != 0) {
    if (!given_) return;
    for (; *text == '^' || *text == '='; ++text) (*text == '^' ? excludes_ : whole_) = true;
    names_ = split_names(text, ',');
  }
  bool given() const { return given_; }
  bool takes(const std::string& name) const {
    const bool named = std::any_of(names_.begin(), names_.end(),
                                   [&](const auto& each) { return whole_ ? name == each : begins_with(name, each); });
    return named != excludes_;
  }

 private:
  bool given_, excludes_ = false, whole_ = false;
  std::vector<std::string> names_;
};

// Whether an interface is used if no setting names any. A bridge of this host leads to its containers, not to other
// hosts, and an interface with only link-local addresses may lead nowhere.
bool taken_by_default(const Interface& interface, const Settings& settings) {
  if (interface.bridge || begins_with(interface.name, "docker")) return false;
  return std::any_of(interface.addresses.begin(), interface.addresses.end(),
                     [&](const auto& each) { return is_of_family(each, settings) && !is_link_local(each); });
}

}  // namespace

std::uint32_t datagram_bytes(const Settings& settings, std::int64_t mtu_bytes, bool v6) {
  const std::int64_t most = std::min<std::int64_t>(mtu_bytes - (v6 ? 48 : 28), kSegmentBytesMax);
  const std::int64_t cap = settings.number("segment_bytes");
  const std::int64_t wanted = cap != 0 ? cap : kSegmentBytesMax;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(std::min(most, wanted), 256));
}

bool find_interfaces(const Settings& settings, std::vector<DeviceState>* out, std::string* error) {
  const std::vector<Interface> interfaces = list_interfaces(error);
  if (interfaces.empty()) return false;
  out->clear();
  for (const std::string& name : split_names(settings.text("interfaces"), ',')) {
    DeviceState device;
    for (const std::string& part : split_names(name, '+')) {
      const auto place =
          std::find_if(interfaces.begin(), interfaces.end(), [&](const auto& each) { return each.name == part; });
      if (place == interfaces.end() || !add_interface(settings, *place, &device)) {
        *error = "interface '" + part + "' (WEFT_INTERFACES) " +
                 (place == interfaces.end() ? "does not exist"
                                            : "is down or has no address of the requested family (WEFT_FAMILY)") +
                 "; there is " + describe(interfaces);
        return false;
      }
    }
    if (!device.places.empty()) out->push_back(device);
  }
  const NcclNames nccl(out->empty() ? std::getenv("NCCL_SOCKET_IFNAME") : nullptr);
  for (const bool loopback : {false, true}) {
    if (!out->empty()) break;
    for (const auto& each : interfaces) {
      DeviceState device;
      const bool wanted = nccl.given() ? nccl.takes(each.name) : taken_by_default(each, settings);
      if (wanted && each.loopback == loopback && add_interface(settings, each, &device)) out->push_back(device);
    }
  }
  if (!out->empty()) return true;
  if (nccl.given()) {
    *error = std::string("NCCL_SOCKET_IFNAME=") + std::getenv("NCCL_SOCKET_IFNAME") +
             " names no interface that is up with an address (WEFT_INTERFACES would take precedence); there is " +
             describe(interfaces);
    return false;
  }
  *error = "no interface is up with an address of the requested family (WEFT_FAMILY); there is " + describe(interfaces);
  return false;
}

}  // namespace weft::datapath
