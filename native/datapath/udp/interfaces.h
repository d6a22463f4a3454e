// Lists the host's network interfaces with their addresses, MTU, speed and offload limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/address.h"

namespace weft::datapath {

struct InterfaceAddress {
  SocketAddress address;
  int prefix_bits = 0;  // 24 for 10.0.0.1/24
};

struct Interface {
  std::string name;
  std::string kind;  // of a virtual interface, as `ip -d link` calls it: veth, vxlan, bond, dummy, ...; empty: a NIC
  unsigned index = 0;
  bool up = false;
  bool loopback = false;
  bool bridge = false;                      // a software bridge of this host, such as docker0
  bool bridges_nic = false;                 // one of the bridge's ports is a NIC or a bond
  std::vector<InterfaceAddress> addresses;  // IPv4 first, then global IPv6, then link-local
  std::int64_t mtu_bytes = 0;
  std::int64_t speed_mbps = 0;     // 0: unknown
  std::int64_t gso_bytes_max = 0;  // largest GSO packet, headers included
  std::int64_t gso_segments_max = 0;
  std::string pci_path;            // canonical sysfs path of its PCI device, or empty
  std::vector<std::string> below;  // interfaces that a bond joins, or on which a VLAN, bridge or tunnel lies
  bool virtual_function = false;   // of a NIC with SR-IOV
};

// All interfaces, in the kernel's order. Empty with `error` set if they cannot be listed.
std::vector<Interface> list_interfaces(std::string* error);

// The kernel's MTU of the route to `to`, IP header included; 0 if there is no route.
std::int64_t route_mtu_bytes(const SocketAddress& to);

// Largest UDP payload of one GSO train over an interface: the largest GSO packet minus Ethernet, IP and UDP headers.
std::int64_t train_bytes_max(const Interface& interface, bool v6) noexcept;

}  // namespace weft::datapath
