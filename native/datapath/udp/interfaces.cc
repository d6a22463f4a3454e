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
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>

#include "native/datapath/fork_registry.h"
#include "native/datapath/udp/interface_sysfs.h"

namespace weft::datapath {
namespace {

constexpr std::int64_t kGsoBytesDefault = 65536;  // the kernel's GSO_LEGACY_MAX_SIZE
constexpr std::int64_t kEthernetBytes = 14;       // header bytes; count towards the GSO limit on interfaces of any type

// What rtnetlink says of a link.
struct Link {
  std::int64_t mtu_bytes = 0, gso_bytes = 0, gso_segments = 0;
  std::string kind;
};

// The text of IFLA_INFO_KIND in an IFLA_LINKINFO attribute.
std::string kind_of(const rtattr* info) {
  auto left = static_cast<int>(RTA_PAYLOAD(info));
  for (auto* at = static_cast<const rtattr*>(RTA_DATA(info)); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (at->rta_type != IFLA_INFO_KIND) continue;
    const auto* text = static_cast<const char*>(RTA_DATA(at));
    return {text, ::strnlen(text, RTA_PAYLOAD(at))};
  }
  return {};
}

void read_link(const nlmsghdr* message, std::map<int, Link>* links) {
  const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  auto left = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof *link));
  Link found;
  for (auto* at = IFLA_RTA(link); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (at->rta_type == IFLA_LINKINFO) found.kind = kind_of(at);
    if (RTA_PAYLOAD(at) < 4) continue;
    std::uint32_t value;
    std::memcpy(&value, RTA_DATA(at), 4);
    if (at->rta_type == IFLA_MTU) found.mtu_bytes = value;
    if (at->rta_type == IFLA_GSO_MAX_SIZE) found.gso_bytes = value;
    if (at->rta_type == IFLA_GSO_MAX_SEGS) found.gso_segments = value;
  }
  (*links)[link->ifi_index] = found;
}

std::map<int, Link> query_links() {
  std::map<int, Link> links;
  const int descriptor = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (descriptor < 0) return links;
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
        if (message->nlmsg_type == RTM_NEWLINK) read_link(message, &links);
      }
    }
  }
  ::close(descriptor);
  return links;
}

int prefix_bits(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  int bits = 0;
  const auto count = [&](const void* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) bits += std::popcount(static_cast<const std::uint8_t*>(bytes)[i]);
  };
  if (mask->sa_family == AF_INET) count(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr, 4);
  if (mask->sa_family == AF_INET6) count(&reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr, 16);
  return bits;
}

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
  const std::map<int, Link> links = query_links();
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    auto place =
        std::find_if(found.begin(), found.end(), [&](const Interface& each) { return each.name == at->ifa_name; });
    if (place == found.end()) {
      Interface made;
      made.name = at->ifa_name;
      made.index = ::if_nametoindex(at->ifa_name);
      made.up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
      made.loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
      const auto link = links.find(static_cast<int>(made.index));
      if (link != links.end()) {
        made.kind = link->second.kind;
        made.mtu_bytes = link->second.mtu_bytes;
        made.gso_bytes_max = link->second.gso_bytes;
        made.gso_segments_max = link->second.gso_segments;
      }
      read_sysfs("/sys", &made);
      if (made.mtu_bytes == 0) made.mtu_bytes = 1500;
      if (made.gso_bytes_max == 0) made.gso_bytes_max = kGsoBytesDefault;
      place = found.insert(found.end(), made);
    }
    if (at->ifa_addr == nullptr) continue;
    SocketAddress address;
    if (at->ifa_addr->sa_family == AF_INET) std::memcpy(&address.v4, at->ifa_addr, sizeof address.v4);
    if (at->ifa_addr->sa_family == AF_INET6) std::memcpy(&address.v6, at->ifa_addr, sizeof address.v6);
    if (address.any.sa_family != AF_UNSPEC) place->addresses.push_back({address, prefix_bits(at->ifa_netmask)});
  }
  ::freeifaddrs(first);
  for (Interface& each : found) {
    std::stable_sort(each.addresses.begin(), each.addresses.end(),
                     [](const auto& a, const auto& b) { return rank(a.address) < rank(b.address); });
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
