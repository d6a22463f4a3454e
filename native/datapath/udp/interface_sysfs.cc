// Reads /sys/class/net. Entries may go while they are read, and virtual devices lack some.
#include "native/datapath/udp/interface_sysfs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace weft::datapath {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

// Names in a folder that begin so, without that beginning.
std::vector<std::string> names_in(const fs::path& folder, const std::string& beginning) {
  std::vector<std::string> names;
  std::error_code failed;
  fs::directory_iterator entry(folder, failed), end;
  for (; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (name.rfind(beginning, 0) == 0) names.push_back(name.substr(beginning.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Whether an interface is a NIC or lies on one, as VLANs and bonds do. `depth` bounds links that form a circle.
bool leads_to_nic(const fs::path& all, const std::string& interface, int depth = 8) {
  if (is_there(all / interface / "device")) return true;
  const std::vector<std::string> below = names_in(all / interface, "lower_");
  return depth > 0 &&
         std::any_of(below.begin(), below.end(), [&](const auto& each) { return leads_to_nic(all, each, depth - 1); });
}

// Whether a bridge leads beyond this host: a port of it is a NIC, or lies on one.
bool has_nic_port(const fs::path& all, const std::string& bridge) {
  const std::vector<std::string> ports = names_in(all / bridge / "brif", "");
  return std::any_of(ports.begin(), ports.end(),
                     [&](const auto& port) { return leads_to_nic(all, port) || is_there(all / port / "bonding"); });
}

// The text after "DEVTYPE=" in an interface's uevent file, such as "vlan", "bond" or "vxlan"; NICs have none.
std::string device_type(const fs::path& interface) {
  std::ifstream file(interface / "uevent");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("DEVTYPE=", 0) == 0) return line.substr(8);
  }
  return {};
}

}  // namespace

void read_sysfs(const std::string& sysfs, Interface* interface) {
  const fs::path all = fs::path(sysfs) / "class" / "net";
  const fs::path own = all / interface->name;
  interface->bridge = is_there(own / "bridge");
  interface->bridges_nic = interface->bridge && has_nic_port(all, interface->name);
  interface->virtual_function = is_there(own / "device" / "physfn");
  interface->below = names_in(own, "lower_");
  std::ifstream speed(own / "speed");
  std::int64_t speed_mbps = 0;
  if (speed >> speed_mbps && speed_mbps > 0) interface->speed_mbps = speed_mbps;
  std::error_code failed;
  const fs::path device = fs::canonical(own / "device", failed);
  if (!failed) interface->pci_path = device;
  if (interface->kind.empty()) interface->kind = device_type(own);
}

std::string what_it_is(const Interface& interface) {
  std::string below;
  for (const std::string& each : interface.below) below += (below.empty() ? "" : ", ") + each;
  if (interface.loopback) return "loopback";
  if (interface.kind == "vlan") return "VLAN of " + below;
  if (interface.kind == "bond" || interface.kind == "team") return interface.kind + " of " + below;
  if (interface.bridge) return "bridge";
  if (interface.virtual_function) return "virtual function";
  if (interface.kind == "wlan") return "wireless NIC";
  if (!interface.kind.empty()) return interface.kind;
  return interface.pci_path.empty() ? "virtual NIC" : "NIC";
}

}  // namespace weft::datapath
