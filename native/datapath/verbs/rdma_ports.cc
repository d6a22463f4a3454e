// Reads /sys/class/infiniband. A missing or malformed file leaves its field empty, as virtual devices lack some files.
// Only opening a port shows whether it is usable.
#include "native/datapath/verbs/rdma_ports.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace weft::datapath {
namespace {

namespace fs = std::filesystem;

constexpr int kGidsMax = 256;

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Parses a GID such as "fe80:0000:...": eight groups of four hexadecimal digits.
bool parse_gid(const std::string& text, std::array<std::uint8_t, 16>* out) {
  if (text.size() != 39) return false;
  bool any = false;
  for (std::size_t group = 0; group < 8; ++group) {
    const auto value = std::strtoul(text.substr(group * 5, 4).c_str(), nullptr, 16);
    (*out)[2 * group] = static_cast<std::uint8_t>(value >> 8);
    (*out)[2 * group + 1] = static_cast<std::uint8_t>(value);
    any = any || value != 0;
  }
  return any;
}

std::vector<Gid> gids_of(const fs::path& port) {
  std::vector<Gid> found;
  for (int index = 0; index < kGidsMax; ++index) {
    const std::string name = std::to_string(index);
    const std::string text = line_of(port / "gids" / name);
    if (text.empty()) break;
    Gid gid;
    gid.index = index;
    if (!parse_gid(text, &gid.bytes)) continue;  // skips an empty entry of the GID table
    gid.roce_v2 = line_of(port / "gid_attrs" / "types" / name).find("v2") != std::string::npos;
    gid.interface = line_of(port / "gid_attrs" / "ndevs" / name);
    found.push_back(gid);
  }
  return found;
}

RdmaPort port_of(const fs::path& device, const fs::path& path) {
  RdmaPort port;
  port.device = device.filename();
  // The kernel names the folder after the port number. NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion)
  port.number = static_cast<std::uint8_t>(std::atoi(path.filename().c_str()));
  port.active = line_of(path / "state").find("ACTIVE") != std::string::npos;
  const std::string link_layer = line_of(path / "link_layer");
  port.ethernet = link_layer == "Ethernet";
  port.infiniband = link_layer == "InfiniBand";
  port.rate_mbps = static_cast<std::int64_t>(std::strtod(line_of(path / "rate").c_str(), nullptr) * 1000);
  port.firmware = line_of(device / "fw_ver");
  std::error_code problem;
  const fs::path pci = fs::canonical(device / "device", problem);
  if (!problem) port.pci_path = pci;
  port.gids = gids_of(path);
  return port;
}

bool small_number(const std::string& text, int most, int* out) {
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, *out);
  return code == std::errc() && stop == end && *out >= 0 && *out <= most;
}

}  // namespace

bool PortName::parse(std::string text) {
  if (const std::size_t at = text.find('@'); at != std::string::npos) {
    if (!small_number(text.substr(at + 1), 255, &gid)) return false;
    text.resize(at);
  }
  if (const std::size_t colon = text.find(':'); colon != std::string::npos) {
    int port = 0;
    if (!small_number(text.substr(colon + 1), 255, &port) || port == 0) return false;
    number = static_cast<std::uint8_t>(port);
    text.resize(colon);
  }
  device = text;
  return !text.empty();
}

std::string PortName::text() const {
  std::string text = device;
  if (number != 0) text.append(":").append(std::to_string(number));
  if (gid >= 0) text.append("@").append(std::to_string(gid));
  return text;
}

bool Gid::is_v4() const noexcept {
  return std::all_of(bytes.begin(), bytes.begin() + 10, [](std::uint8_t b) { return b == 0; }) && bytes[10] == 0xFF &&
         bytes[11] == 0xFF;
}

bool Gid::is_link_local() const noexcept { return bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80; }

std::vector<RdmaPort> list_rdma_ports(const std::string& sysfs) {
  std::vector<RdmaPort> ports;
  std::error_code problem;
  std::vector<fs::path> devices;
  for (const auto& entry : fs::directory_iterator(fs::path(sysfs) / "class/infiniband", problem))
    devices.push_back(entry.path());
  std::sort(devices.begin(), devices.end());
  for (const fs::path& device : devices) {
    std::vector<fs::path> numbers;
    for (const auto& entry : fs::directory_iterator(device / "ports", problem)) numbers.push_back(entry.path());
    std::sort(numbers.begin(), numbers.end());
    for (const fs::path& number : numbers) ports.push_back(port_of(device, number));
  }
  return ports;
}

std::vector<RdmaPort> software_ports(const Ibv& library) {
  std::vector<RdmaPort> ports;
  int count = 0;
  ibv_device** const devices = library.get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count; ++i) {
    ibv_context* const context = library.open_device(devices[i]);
    if (context == nullptr) continue;
    RdmaPort port;
    Gid gid;
    ibv_gid raw{};
    ibv_port_attr attributes{};
    port.device = library.get_device_name(devices[i]);
    port.active = library.query_port(context, port.number, &attributes) == 0 && attributes.state == IBV_PORT_ACTIVE;
    port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.infiniband = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
    if (library.query_gid(context, port.number, gid.index, &raw) == 0) {
      std::copy_n(raw.raw, gid.bytes.size(), gid.bytes.begin());
      gid.roce_v2 = true;
      gid.interface = "lo";
      port.gids.push_back(gid);
    }
    static_cast<void>(library.close_device(context));
    ports.push_back(port);
  }
  if (devices != nullptr) library.free_device_list(devices);
  return ports;
}

std::vector<Gid> gids_by_preference(const RdmaPort& port, bool v6) {
  std::vector<Gid> gids = port.gids;
  const auto rank = [v6](const Gid& gid) {
    const int family = gid.is_v4() == !v6 && !gid.is_link_local() ? 0 : gid.is_link_local() ? 2 : 1;
    return (gid.roce_v2 ? 0 : 10) + family;
  };
  std::stable_sort(gids.begin(), gids.end(), [&](const Gid& a, const Gid& b) { return rank(a) < rank(b); });
  return gids;
}

}  // namespace weft::datapath
