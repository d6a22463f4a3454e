// An IP address with a port: what a host's name resolves to, and where control sockets connect to.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

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

// Whether an address is only valid on one link: fe80::/10, 169.254.0.0/16.
bool is_link_local(const SocketAddress& address) noexcept;

// Resolves "10.0.0.1", "::1", "fe80::1%eth0" or a host name. False with `error` set on failure.
bool resolve(const std::string& host, std::uint16_t port, int family, SocketAddress* out, std::string* error);

}  // namespace weft::datapath
