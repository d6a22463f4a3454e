// Opens UDP sockets, sets their options, and waits for datagrams. Sending is in udp_tx.cc, receiving in udp_rx.cc,
// links in udp_link.cc. Options that the transport can do without may fail; other failures are errors.
#include "native/datapath/udp/udp_datapath.h"

#include <linux/udp.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/datapath/fork_registry.h"
#include "native/datapath/udp/staging.h"

namespace weft::datapath {
namespace {

constexpr int kEctZero = 0x02;  // the IP header's ECN codepoint ECT(0) of RFC 3168
constexpr int kOn = 1;

std::string complaint(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

}  // namespace

UdpDatapath::UdpDatapath(const UdpOptions& options) : options_(options), faults_(options.faults) {
  ports_tried_ = static_cast<std::uint32_t>(::getpid()) * 2'654'435'761u;
  items_.reserve(kTxBursts);
  std::string ignored;  // not needed: find_udp() has read the plan file at start-up and reported any error
  if (!options_.plan.empty() && !plan_.read(options_.plan, &ignored)) options_.plan.clear();
}

UdpDatapath::~UdpDatapath() {
  for (const Port& port : ports_) close_socket(port.descriptor);
  if (options_.promised != nullptr) options_.promised->fetch_add(static_cast<std::int64_t>(ports_.size()));
  if (epoll_ >= 0) ::close(epoll_);
}

bool UdpDatapath::open(std::string* error) {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) {
    *error = complaint("cannot create an epoll instance");
    return false;
  }
  staging_.reset(new (std::nothrow) Staging);
  if (staging_ == nullptr) *error = "out of memory for receive buffers";
  return staging_ != nullptr;
}

bool UdpDatapath::set_options(int descriptor, bool v6, std::string* error) {
  const int wanted = static_cast<int>(std::min<std::int64_t>(options_.socket_buffer_bytes, 1 << 30));
  for (const auto& [forced, plain] : {std::pair{SO_RCVBUFFORCE, SO_RCVBUF}, std::pair{SO_SNDBUFFORCE, SO_SNDBUF}}) {
    // Root may exceed net.core.rmem_max; for other users the kernel limits the size.
    if (::setsockopt(descriptor, SOL_SOCKET, forced, &wanted, sizeof wanted) != 0 &&
        ::setsockopt(descriptor, SOL_SOCKET, plain, &wanted, sizeof wanted) != 0) {
      *error = complaint("cannot set the size of a socket buffer (WEFT_SOCKET_BUFFER_BYTES)");
      return false;
    }
  }
  int granted = 0;
  socklen_t length = sizeof granted;
  ::getsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &granted, &length);
  // getsockopt reports twice the requested size, to account for the kernel's bookkeeping (socket(7)).
  const std::int64_t usable = granted / 2;
  buffer_bytes_.store(ports_.empty() ? usable : std::min(buffer_bytes(), usable), std::memory_order_relaxed);
  ::setsockopt(descriptor, SOL_SOCKET, SO_RXQ_OVFL, &kOn, sizeof kOn);
  ::setsockopt(descriptor, SOL_SOCKET, SO_TIMESTAMPNS, &kOn, sizeof kOn);
  ::setsockopt(descriptor, IPPROTO_UDP, UDP_GRO, &kOn, sizeof kOn);
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  const int tos = options_.dscp << 2 | (options_.ecn ? kEctZero : 0);
  if (tos != 0) ::setsockopt(descriptor, level, v6 ? IPV6_TCLASS : IP_TOS, &tos, sizeof tos);
  if (options_.ecn) ::setsockopt(descriptor, level, v6 ? IPV6_RECVTCLASS : IP_RECVTOS, &kOn, sizeof kOn);
  // Forbids fragmentation, and makes the kernel ignore ICMP messages about a path's MTU. The transport's own probes
  // find out how large a datagram each path carries (core/size_search.h), so a probe must not pass in fragments.
  // IPv4 and IPv6 have separate constants, whose values happen to be equal. NOLINTNEXTLINE(bugprone-branch-clone)
  const int fragment = v6 ? IPV6_PMTUDISC_PROBE : IP_PMTUDISC_PROBE;
  ::setsockopt(descriptor, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &fragment,
               sizeof fragment);
  return true;
}

bool UdpDatapath::bind_in_range(int descriptor, SocketAddress* address) {
  const auto [first, last] = options_.ports;
  const std::uint32_t count = std::uint32_t{last} - first + 1;
  for (std::uint32_t tried = 0; tried < count; ++tried) {
    address->set_port(static_cast<std::uint16_t>(first + ports_tried_++ % count));
    if (::bind(descriptor, &address->any, address->bytes()) == 0) return true;
    if (errno != EADDRINUSE) return false;
  }
  return false;
}

bool UdpDatapath::bind_port(int descriptor, SocketAddress* address) {
  if (options_.ports.last != 0) return bind_in_range(descriptor, address);
  if (::bind(descriptor, &address->any, address->bytes()) == 0) return true;
  if (address->port() == 0 || errno != EADDRINUSE) return false;
  notice_ = "UDP port " + std::to_string(address->port()) + " of " + address->text() +
            " is in use, so a path has another port, which no plan file (WEFT_PLAN) contains: give each process of a "
            "host its own WEFT_PORT_BASE";
  address->set_port(0);
  return ::bind(descriptor, &address->any, address->bytes()) == 0;
}

bool UdpDatapath::open_port(const Place& place, std::uint16_t number, std::uint32_t* port, std::string* error) {
  Port made;
  made.v6 = place.address.is_v6();
  made.descriptor = open_socket(place.address.any.sa_family, SOCK_DGRAM);
  if (made.descriptor < 0) {
    *error = complaint("cannot create a UDP socket for a path");
    return false;
  }
  SocketAddress bound = place.address;
  bound.set_port(number);
  if (bound.is_v6() && IN6_IS_ADDR_LINKLOCAL(&bound.v6.sin6_addr)) bound.v6.sin6_scope_id = place.interface_index;
  socklen_t length = bound.bytes();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(ports_.size());
  const bool ready = set_options(made.descriptor, made.v6, error) && bind_port(made.descriptor, &bound) &&
                     ::getsockname(made.descriptor, &bound.any, &length) == 0 &&
                     ::epoll_ctl(epoll_, EPOLL_CTL_ADD, made.descriptor, &event) == 0;
  if (!ready) {
    if (options_.ports.last != 0 && errno == EADDRINUSE) {
      *error = "all UDP ports from " + std::to_string(options_.ports.first) + " to " +
               std::to_string(options_.ports.last) + " of " + place.address.text() +
               " are in use, and each process of a host needs one for each path of each engine: give a larger range "
               "(WEFT_PORT_BASE)";
    }
    if (error->empty()) *error = complaint(("cannot bind a UDP socket for a path to " + place.address.text()).c_str());
    close_socket(made.descriptor);
    return false;
  }
  made.number = bound.port();
  made.address = bound;
  made.interface_index = place.interface_index;
  *port = static_cast<std::uint32_t>(ports_.size());
  ports_.push_back(made);
  if (options_.promised != nullptr) options_.promised->fetch_sub(1);
  return true;
}

bool UdpDatapath::watch(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = ~std::uint32_t{0};
  return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void UdpDatapath::wait(std::int64_t timeout_ns) {
  pollfd descriptor{epoll_, POLLIN, 0};
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::ppoll(&descriptor, 1, timeout_ns < 0 ? nullptr : &timeout, nullptr);
}

}  // namespace weft::datapath
