// Converts addresses to text, and text to addresses.
#include "native/datapath/address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cstring>

namespace weft::datapath {

std::string SocketAddress::text() const {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(&any, bytes(), host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

bool is_link_local(const SocketAddress& address) noexcept {
  if (address.is_v6()) return IN6_IS_ADDR_LINKLOCAL(&address.v6.sin6_addr);
  return ntohl(address.v4.sin_addr.s_addr) >> 16 == 0xa9fe;
}

bool resolve(const std::string& host, std::uint16_t port, int family, SocketAddress* out, std::string* error) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (result != 0 || list == nullptr) {
    *error = "cannot resolve '" + host + "': " + ::gai_strerror(result);
    return false;
  }
  if (list->ai_family == AF_INET6) {
    std::memcpy(&out->v6, list->ai_addr, sizeof out->v6);
  } else {
    std::memcpy(&out->v4, list->ai_addr, sizeof out->v4);
  }
  ::freeaddrinfo(list);
  out->set_port(port);
  return true;
}

}  // namespace weft::datapath
