// Asks the kernel, by rtnetlink, where datagrams leave the host and for which MAC address, and hears of changes.
#pragma once

#include <cstdint>
#include <string>

#include "native/datapath/address.h"
#include "native/datapath/xdp/frames.h"

namespace weft::datapath::xdp {

// The XDP program attached to an interface, as its id; 0: none, or unknown.
std::uint32_t attached_program(unsigned interface_index);

// How many receive queues the interface uses; 1 if the kernel does not say.
std::uint32_t queue_count(unsigned interface_index);

struct NextHop {
  bool known = false;      // the route leads over the interface, and the neighbour's MAC address is known
  bool confirmed = false;  // the neighbour has answered lately; otherwise the kernel should ask it again
  std::uint8_t from[kMacBytes] = {}, to[kMacBytes] = {};
};

class Netlink {
 public:
  Netlink() = default;
  ~Netlink();
  Netlink(const Netlink&) = delete;
  Netlink& operator=(const Netlink&) = delete;

  bool open(std::string* error);
  // The next hop of datagrams between these addresses over this interface.
  NextHop next_hop(const SocketAddress& from, const SocketAddress& to, unsigned interface_index);
  // Whether routes, neighbours or interfaces may have changed since the last call.
  bool changed() noexcept;

 private:
  int queries_ = -1, changes_ = -1;
};

}  // namespace weft::datapath::xdp
