// Lists the host's RDMA devices, ports and GIDs from sysfs, which needs neither libibverbs nor privileges.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

// The name of a port as written in knobs and in Place::port: "mlx5_0", "mlx5_0:1" or "mlx5_0:1@3".
struct PortName {
  std::string device;
  std::uint8_t number = 0;  // port number; 0: any active port
  int gid = -1;             // index of the GID; -1: the preferred one

  // Returns false if the text is not a port name.
  bool parse(std::string text);
  std::string text() const;
};

struct Gid {
  int index = 0;
  std::array<std::uint8_t, 16> bytes{};
  bool roce_v2 = false;
  std::string interface;  // network interface of this GID; empty on InfiniBand

  bool is_v4() const noexcept;          // the last four bytes are an IPv4 address
  bool is_link_local() const noexcept;  // fe80::/10
};

struct RdmaPort {
  std::string device;
  std::uint8_t number = 1;
  bool active = false;
  bool ethernet = false;
  bool infiniband = false;     // neither: a fabric of its own, such as EFA
  std::int64_t rate_mbps = 0;  // the port's rate as the kernel reports it; 0: unknown
  std::string firmware;
  std::string pci_path;  // canonical sysfs path, or empty
  std::vector<Gid> gids;
};

// All RDMA ports of the host, in order of device name and port number; empty on a host without RDMA. `sysfs`: "/sys",
// or a copy of it.
std::vector<RdmaPort> list_rdma_ports(const std::string& sysfs = "/sys");
// Ports of a software provider, which the kernel does not list. They only reach processes of this host, so their
// control sockets use loopback addresses.
std::vector<RdmaPort> software_ports(const Ibv& library);

// GIDs of a port in the order in which they are tried: RoCE v2 before v1; within each, IPv4, then global IPv6, then
// link-local. `v6`: IPv6 before IPv4.
std::vector<Gid> gids_by_preference(const RdmaPort& port, bool v6);

}  // namespace weft::datapath
