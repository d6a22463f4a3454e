// Sends rtnetlink requests for one route, one neighbour or one link each. The kernel answers within the call that sends
// the request, so nothing here waits.
#include "native/datapath/xdp/netlink.h"

#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/datapath/fork_registry.h"

namespace weft::datapath::xdp {
namespace {

constexpr std::size_t kAnswerBytes = 16'384;

// A request with a fixed part of its own and attributes.
template <class Fixed>
struct Request {
  nlmsghdr header{};
  Fixed fixed{};
  char attributes[64] = {};

  explicit Request(std::uint16_t type) {
    header.nlmsg_len = NLMSG_LENGTH(sizeof fixed);
    header.nlmsg_type = type;
    header.nlmsg_flags = NLM_F_REQUEST;
  }
  void add(std::uint16_t type, const void* value, std::size_t bytes) {
    auto* const at = reinterpret_cast<rtattr*>(reinterpret_cast<char*>(this) + NLMSG_ALIGN(header.nlmsg_len));
    at->rta_type = type;
    at->rta_len = static_cast<std::uint16_t>(RTA_LENGTH(bytes));
    std::memcpy(RTA_DATA(at), value, bytes);
    header.nlmsg_len = NLMSG_ALIGN(header.nlmsg_len) + RTA_ALIGN(at->rta_len);
  }
};

struct Answer {
  alignas(nlmsghdr) char bytes[kAnswerBytes];
  std::size_t length = 0;
};

template <class Fixed>
bool ask(int descriptor, Request<Fixed>* request, std::uint16_t answer_type, Answer* answer) {
  while (::recv(descriptor, answer->bytes, kAnswerBytes, MSG_DONTWAIT) > 0) {
  }  // of a request whose answer was not read
  if (::send(descriptor, request, request->header.nlmsg_len, 0) < 0) return false;
  const ssize_t got = ::recv(descriptor, answer->bytes, kAnswerBytes, MSG_DONTWAIT);
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(Fixed)))) return false;
  const auto* const header = reinterpret_cast<const nlmsghdr*>(answer->bytes);
  answer->length = std::min<std::size_t>(header->nlmsg_len, static_cast<std::size_t>(got));
  return header->nlmsg_type == answer_type && answer->length >= NLMSG_LENGTH(sizeof(Fixed));
}

template <class Fixed>
const Fixed* fixed_of(const Answer& answer) {
  return reinterpret_cast<const Fixed*>(answer.bytes + NLMSG_HDRLEN);
}

// Calls `take` with each attribute behind the fixed part.
template <class Fixed, class Take>
void each_attribute(const Answer& answer, const Take& take) {
  const std::size_t first = NLMSG_ALIGN(NLMSG_LENGTH(sizeof(Fixed)));
  if (answer.length <= first) return;
  auto left = static_cast<int>(answer.length - first);
  for (auto* at = reinterpret_cast<const rtattr*>(answer.bytes + first); RTA_OK(at, left); at = RTA_NEXT(at, left))
    take(at->rta_type & NLA_TYPE_MASK, RTA_DATA(at), static_cast<std::size_t>(RTA_PAYLOAD(at)));
}

const void* ip_of(const SocketAddress& address) {
  if (address.is_v6()) return &address.v6.sin6_addr;
  return &address.v4.sin_addr;
}

std::size_t ip_bytes(int family) { return family == AF_INET6 ? 16 : 4; }

struct Ip {
  int family = 0;
  std::uint8_t bytes[16] = {};
};

// Where the route to `to` leads: the neighbour's address. False unless it is a plain route over the interface.
bool find_route(int descriptor, const SocketAddress& from, const SocketAddress& to, unsigned interface_index,
                Ip* neighbour) {
  Request<rtmsg> request(RTM_GETROUTE);
  const int family = to.any.sa_family;
  request.fixed.rtm_family = static_cast<std::uint8_t>(family);
  request.fixed.rtm_dst_len = request.fixed.rtm_src_len = static_cast<std::uint8_t>(8 * ip_bytes(family));
  request.add(RTA_DST, ip_of(to), ip_bytes(family));
  request.add(RTA_SRC, ip_of(from), ip_bytes(family));
  const bool link_local = to.is_v6() && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr);
  const std::uint32_t over = interface_index;
  if (link_local) request.add(RTA_OIF, &over, sizeof over);
  Answer answer;
  if (!ask(descriptor, &request, RTM_NEWROUTE, &answer)) return false;
  if (fixed_of<rtmsg>(answer)->rtm_type != RTN_UNICAST) return false;
  neighbour->family = family;
  std::memcpy(neighbour->bytes, ip_of(to), ip_bytes(family));
  std::uint32_t interface = 0;
  bool plain = true;
  each_attribute<rtmsg>(answer, [&](int type, const void* value, std::size_t bytes) {
    if (type == RTA_OIF && bytes == sizeof interface) std::memcpy(&interface, value, bytes);
    if (type == RTA_GATEWAY && bytes == ip_bytes(family)) std::memcpy(neighbour->bytes, value, bytes);
    if (type == RTA_VIA && bytes == sizeof(rtvia) + 16) {  // an IPv6 neighbour of an IPv4 route
      neighbour->family = AF_INET6;
      std::memcpy(neighbour->bytes, static_cast<const char*>(value) + sizeof(rtvia), 16);
    }
    if (type == RTA_ENCAP || type == RTA_MULTIPATH) plain = false;
  });
  return plain && interface == interface_index;
}

void find_neighbour(int descriptor, const Ip& address, unsigned interface_index, NextHop* out) {
  Request<ndmsg> request(RTM_GETNEIGH);
  request.fixed.ndm_family = static_cast<std::uint8_t>(address.family);
  request.fixed.ndm_ifindex = static_cast<int>(interface_index);
  request.add(NDA_DST, address.bytes, ip_bytes(address.family));
  Answer answer;
  if (!ask(descriptor, &request, RTM_NEWNEIGH, &answer)) return;
  const unsigned state = fixed_of<ndmsg>(answer)->ndm_state;
  if ((state & (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP)) == 0) return;
  out->confirmed = (state & (NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP)) != 0;
  each_attribute<ndmsg>(answer, [&](int type, const void* value, std::size_t bytes) {
    if (type != NDA_LLADDR || bytes != kMacBytes) return;
    std::memcpy(out->to, value, kMacBytes);
    out->known = true;
  });
}

bool find_link(int descriptor, unsigned interface_index, Answer* answer) {
  Request<ifinfomsg> request(RTM_GETLINK);
  request.fixed.ifi_index = static_cast<int>(interface_index);
  return ask(descriptor, &request, RTM_NEWLINK, answer);
}

int open_netlink(std::uint32_t groups) {
  const int descriptor = open_socket(AF_NETLINK, SOCK_RAW);  // protocol 0 is NETLINK_ROUTE
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (descriptor < 0) return -1;
  if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return descriptor;
  close_socket(descriptor);
  return -1;
}

}  // namespace

std::uint32_t attached_program(unsigned interface_index) {
  const int descriptor = open_netlink(0);
  Answer answer;
  std::uint32_t program = 0;
  if (descriptor >= 0 && find_link(descriptor, interface_index, &answer)) {
    each_attribute<ifinfomsg>(answer, [&](int type, const void* value, std::size_t bytes) {
      if (type != IFLA_XDP) return;
      auto left = static_cast<int>(bytes);
      for (auto* at = static_cast<const rtattr*>(value); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
        if (at->rta_type == IFLA_XDP_PROG_ID) std::memcpy(&program, RTA_DATA(at), sizeof program);
      }
    });
  }
  close_socket(descriptor);
  return program;
}

std::uint32_t queue_count(unsigned interface_index) {
  ifreq request{};
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  request.ifr_data = reinterpret_cast<char*>(&channels);
  const int descriptor = open_socket(AF_INET, SOCK_DGRAM);
  const bool told = descriptor >= 0 && ::if_indextoname(interface_index, request.ifr_name) != nullptr &&
                    ::ioctl(descriptor, SIOCETHTOOL, &request) == 0;
  close_socket(descriptor);
  // Some drivers take AF_XDP sockets only on queues that send too.
  const std::uint32_t count = channels.combined_count != 0 ? channels.combined_count : channels.rx_count;
  return told ? std::max(count, 1u) : 1;
}

Netlink::~Netlink() {
  close_socket(queries_);
  close_socket(changes_);
}

bool Netlink::open(std::string* error) {
  queries_ = open_netlink(0);
  changes_ = open_netlink(RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE);
  if (queries_ < 0 || changes_ < 0) *error = std::string("cannot open a netlink socket: ") + std::strerror(errno);
  return queries_ >= 0 && changes_ >= 0;
}

NextHop Netlink::next_hop(const SocketAddress& from, const SocketAddress& to, unsigned interface_index) {
  NextHop found;
  Ip neighbour;
  if (!find_route(queries_, from, to, interface_index, &neighbour)) return found;
  find_neighbour(queries_, neighbour, interface_index, &found);
  Answer answer;
  bool has_mac = false;
  if (found.known && find_link(queries_, interface_index, &answer)) {
    each_attribute<ifinfomsg>(answer, [&](int type, const void* value, std::size_t bytes) {
      if (type != IFLA_ADDRESS || bytes != kMacBytes) return;
      std::memcpy(found.from, value, kMacBytes);
      has_mac = true;
    });
  }
  found.known = found.known && has_mac;
  return found;
}

bool Netlink::changed() noexcept {
  alignas(nlmsghdr) char ignored[8192];
  bool any = false;
  for (ssize_t got = 1; got > 0;) {
    got = ::recv(changes_, ignored, sizeof ignored, MSG_DONTWAIT);
    any = any || got > 0 || (got < 0 && errno == ENOBUFS);  // ENOBUFS: there were more than the kernel keeps
  }
  return any;
}

}  // namespace weft::datapath::xdp
