// Reads rp_filter. The kernel applies the larger value of "all" and of the interface: 2 (loose) overrides 1 (strict).
#include "native/datapath/udp/reverse_path.h"

#include <algorithm>
#include <fstream>

namespace weft::datapath {
namespace {

bool shares_subnet(const Interface& interface, const SocketAddress& to) {
  return std::any_of(interface.addresses.begin(), interface.addresses.end(), [&](const InterfaceAddress& each) {
    if (each.address.is_v6() || each.prefix_bits == 0 || each.prefix_bits == 32) return false;
    const std::uint32_t differ = ntohl(each.address.v4.sin_addr.s_addr) ^ ntohl(to.v4.sin_addr.s_addr);
    return differ >> (32 - each.prefix_bits) == 0;
  });
}

}  // namespace

bool filters_strictly(const std::string& name) {
  const auto read = [](const std::string& of) {
    std::ifstream file("/proc/sys/net/ipv4/conf/" + of + "/rp_filter");
    int value = 0;
    return file >> value ? value : 0;
  };
  return std::max(read("all"), read(name)) == 1;
}

std::string reverse_path_problem(const std::vector<Interface>& interfaces, const SocketAddress& to,
                                 bool (*is_strict)(const std::string& name)) {
  if (to.is_v6()) return {};
  std::string names, remedy;
  std::size_t count = 0;
  bool strict = false;
  for (const Interface& each : interfaces) {
    if (!each.up || each.loopback || !shares_subnet(each, to)) continue;
    names += (count++ == 0 ? "" : " and ") + each.name;
    remedy += " net.ipv4.conf." + each.name + ".rp_filter=2";
    strict = strict || is_strict(each.name);
  }
  if (count < 2 || !strict) return {};
  return names +
         " are in one subnet and reverse path filtering is strict, so the kernel may drop what arrives: sysctl -w" +
         remedy + " at both hosts, or name one of them in WEFT_INTERFACES";
}

}  // namespace weft::datapath
