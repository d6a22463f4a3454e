// What network interfaces this host has and what they can carry: addresses, MTU, speed, offload limits.
// Opens no data socket and chooses nothing.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::datapath {

// An IPv4 or IPv6 address with a port, and nothing else.
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
  bool bridge = false;                   // a switch of this host, as docker0
  std::vector<SocketAddress> addresses;  // IPv4 first, then global IPv6, then link-local
  std::int64_t mtu_bytes = 0;
  std::int64_t speed_mbps = 0;     // 0: the kernel does not say
  std::int64_t gso_bytes_max = 0;  // largest super-packet, headers included
  std::int64_t gso_segments_max = 0;
  std::string pci_path;  // real sysfs path, or empty
};

// Whether an address is of no use beyond one link: fe80::/10, 169.254.0.0/16.
bool is_link_local(const SocketAddress& address) noexcept;

// Every interface, in the kernel's order. Empty with `error` set when the kernel does not answer.
std::vector<Interface> list_interfaces(std::string* error);

// "10.0.0.1", "::1", "fe80::1%eth0" or a host name. False with `error` set when it means nothing here.
bool resolve(const std::string& host, std::uint16_t port, int family, SocketAddress* out, std::string* error);

// MTU of the route to `to` as the kernel knows it, IP header included; 0 when there is no route.
std::int64_t route_mtu_bytes(const SocketAddress& to);

// Largest UDP payload of one train over an interface: its super-packet less Ethernet, IP and UDP headers.
std::int64_t train_bytes_max(const Interface& interface, bool v6) noexcept;

}  // namespace weft::datapath
