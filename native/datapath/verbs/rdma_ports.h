// Which RDMA devices, ports and GIDs this host has, as sysfs tells: needs neither libibverbs nor any right.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct Gid {
  int index = 0;
  std::array<std::uint8_t, 16> bytes{};
  bool roce_v2 = false;
  std::string interface;  // the network interface it belongs to; empty on InfiniBand

  bool is_v4() const noexcept;          // an IPv4 address in its last four bytes
  bool is_link_local() const noexcept;  // fe80::/10
};

struct RdmaPort {
  std::string device;
  std::uint8_t number = 1;
  bool active = false;
  bool ethernet = false;
  std::int64_t rate_mbps = 0;  // as the kernel states it; 0: it does not say
  std::string firmware;
  std::string pci_path;  // real sysfs path, or empty
  std::vector<Gid> gids;
};

// In the kernel's order; empty where there is no RDMA.
std::vector<RdmaPort> list_rdma_ports();
// Those of a provider that the kernel does not know. Its network ends on this host: so do the control sockets.
std::vector<RdmaPort> software_ports(const Ibv& library);

// The order in which GIDs are tried: RoCE v2 before v1; IPv4, then global IPv6, then link-local. `v6`: IPv6 first.
std::vector<Gid> gids_by_preference(const RdmaPort& port, bool v6);

}  // namespace weft::datapath
