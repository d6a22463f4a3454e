// Lists the host's network interfaces with their addresses, MTU, speed and offload limits.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::datapath {

// An IPv4 or IPv6 address with a port.
union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;

  SocketAddress() noexcept : v6{} {}
  bool is_v6() const noexcept { return any.sa_family == AF_INET6; }
  socklen_t bytes() const noexcept { return is_v6() ? sizeof v6 : sizeof v4; }
  std::uint16_t port() const noexcept { return ntohs(is_v6() ? v6.sin6_port : v4.sin_port); }
  void set_port(std::uint16_t port) noexcept { (is_v6() ? v6.sin6_port : v4.sin_port) = htons(port); }
  std::string text() const;  // "10.0.0.1" or "fe80::1%eth0"
};

struct Interface {
  std::string name;
  unsigned index = 0;
  bool up = false;
  bool loopback = false;
  bool bridge = false;                   // a software bridge of this host, such as docker0
  std::vector<SocketAddress> addresses;  // IPv4 first, then global IPv6, then link-local
  std::int64_t mtu_bytes = 0;
  std::int64_t speed_mbps = 0;     // 0: unknown
  std::int64_t gso_bytes_max = 0;  // largest GSO packet, headers included
  std::int64_t gso_segments_max = 0;
  std::string pci_path;  // canonical sysfs path, or empty
};

// Whether an address is only valid on one link: fe80::/10, 169.254.0.0/16.
bool is_link_local(const SocketAddress& address) noexcept;

// All interfaces, in the kernel's order. Empty with `error` set if they cannot be listed.
std::vector<Interface> list_interfaces(std::string* error);

// Resolves "10.0.0.1", "::1", "fe80::1%eth0" or a host name. False with `error` set on failure.
bool resolve(const std::string& host, std::uint16_t port, int family, SocketAddress* out, std::string* error);

// The kernel's MTU of the route to `to`, IP header included; 0 if there is no route.
std::int64_t route_mtu_bytes(const SocketAddress& to);

// Largest UDP payload of one GSO train over an interface: its largest packet less Ethernet, IP and UDP headers.
std::int64_t train_bytes_max(const Interface& interface, bool v6) noexcept;

}  // namespace weft::datapath
