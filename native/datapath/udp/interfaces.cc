// Lists network interfaces: addresses by getifaddrs, limits by rtnetlink, speed and PCI path from sysfs. A missing
// value is 0; only an empty list is an error.
#include "native/datapath/udp/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "native/datapath/fork_registry.h"

namespace weft::datapath {
namespace {

constexpr std::int64_t kGsoBytesDefault = 65536;  // the kernel's GSO_LEGACY_MAX_SIZE
constexpr std::int64_t kEthernetBytes = 14;       // header bytes; count towards the GSO limit on interfaces of any type

struct Limits {
  std::int64_t mtu_bytes = 0, gso_bytes = 0, gso_segments = 0;
};

void read_link(const nlmsghdr* message, std::map<int, Limits>* limits) {
  const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  auto left = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof *link));
  Limits found;
  for (auto* at = IFLA_RTA(link); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (RTA_PAYLOAD(at) < 4) continue;
    std::uint32_t value;
    std::memcpy(&value, RTA_DATA(at), 4);
    if (at->rta_type == IFLA_MTU) found.mtu_bytes = value;
    if (at->rta_type == IFLA_GSO_MAX_SIZE) found.gso_bytes = value;
    if (at->rta_type == IFLA_GSO_MAX_SEGS) found.gso_segments = value;
  }
  (*limits)[link->ifi_index] = found;
}

std::map<int, Limits> query_limits() {
  std::map<int, Limits> limits;
  const int descriptor = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (descriptor < 0) return limits;
  const timeval patience{1, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  struct {
    nlmsghdr header;
    ifinfomsg link;
  } request{};
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.link);
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  if (::send(descriptor, &request, request.header.nlmsg_len, 0) > 0) {
    // The buffer is not thread_local: the C library ends the process if it has no memory for thread-local storage.
    alignas(nlmsghdr) char buffer[32768];
    for (bool more = true; more;) {
      const ssize_t got = ::recv(descriptor, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      auto left = static_cast<unsigned>(got);
      for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
           message = NLMSG_NEXT(message, left)) {
        if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) more = false;
        if (message->nlmsg_type == RTM_NEWLINK) read_link(message, &limits);
      }
    }
  }
  ::close(descriptor);
  return limits;
}

std::int64_t read_speed_mbps(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  std::int64_t speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

std::string read_pci_path(const std::string& name) {
  char real[PATH_MAX];
  return ::realpath(("/sys/class/net/" + name + "/device").c_str(), real) != nullptr ? real : "";
}

bool is_bridge(const std::string& name) { return ::access(("/sys/class/net/" + name + "/bridge").c_str(), F_OK) == 0; }

int rank(const SocketAddress& address) {
  if (!address.is_v6()) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&address.v6.sin6_addr) ? 2 : 1;
}

}  // namespace

std::vector<Interface> list_interfaces(std::string* error) {
  std::vector<Interface> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    *error = std::string("cannot list network interfaces: ") + std::strerror(errno);
    return found;
  }
  const std::map<int, Limits> limits = query_limits();
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    auto place =
        std::find_if(found.begin(), found.end(), [&](const Interface& each) { return each.name == at->ifa_name; });
    if (place == found.end()) {
      Interface made;
      made.name = at->ifa_name;
      made.index = ::if_nametoindex(at->ifa_name);
      made.up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
      made.loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
      made.bridge = is_bridge(made.name);
      made.speed_mbps = read_speed_mbps(made.name);
      made.pci_path = read_pci_path(made.name);
      const auto limit = limits.find(static_cast<int>(made.index));
      if (limit != limits.end()) {
        made.mtu_bytes = limit->second.mtu_bytes;
        made.gso_bytes_max = limit->second.gso_bytes;
        made.gso_segments_max = limit->second.gso_segments;
      }
      if (made.mtu_bytes == 0) made.mtu_bytes = 1500;
      if (made.gso_bytes_max == 0) made.gso_bytes_max = kGsoBytesDefault;
      place = found.insert(found.end(), made);
    }
    if (at->ifa_addr == nullptr) continue;
    SocketAddress address;
    if (at->ifa_addr->sa_family == AF_INET) std::memcpy(&address.v4, at->ifa_addr, sizeof address.v4);
    if (at->ifa_addr->sa_family == AF_INET6) std::memcpy(&address.v6, at->ifa_addr, sizeof address.v6);
    if (address.any.sa_family != AF_UNSPEC) place->addresses.push_back(address);
  }
  ::freeifaddrs(first);
  for (Interface& each : found) {
    std::stable_sort(each.addresses.begin(), each.addresses.end(),
                     [](const SocketAddress& a, const SocketAddress& b) { return rank(a) < rank(b); });
  }
  if (found.empty()) *error = "this host has no network interface";
  return found;
}

std::int64_t route_mtu_bytes(const SocketAddress& to) {
  const int descriptor = open_socket(to.any.sa_family, SOCK_DGRAM);
  if (descriptor < 0) return 0;
  int mtu = 0;
  socklen_t length = sizeof mtu;
  const bool known = ::connect(descriptor, &to.any, to.bytes()) == 0 &&
                     ::getsockopt(descriptor, to.is_v6() ? IPPROTO_IPV6 : IPPROTO_IP, to.is_v6() ? IPV6_MTU : IP_MTU,
                                  &mtu, &length) == 0;
  close_socket(descriptor);
  return known ? mtu : 0;
}

std::int64_t train_bytes_max(const Interface& interface, bool v6) noexcept {
  const std::int64_t ip_udp_bytes = v6 ? 48 : 28;
  const std::int64_t whole = std::min(interface.gso_bytes_max, kGsoBytesDefault);
  return whole - 1 - kEthernetBytes - ip_udp_bytes;
}

}  // namespace weft::datapath
