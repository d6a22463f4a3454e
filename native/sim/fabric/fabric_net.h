// Ports and routes: which port of a switch a packet leaves by.
#pragma once

#include <vector>

#include "native/sim/fabric/fabric_port.h"

namespace weft::sim {

class FabricNet {
 public:
  void open(const FabricPlan& plan, const FabricRules* rules);

  // The port of switch `node` towards the packet's host; kNone: there is no way.
  u32 route(u32 node, FabricPacket* packet) const noexcept;
  // The port that a host sends a path's packets by.
  u32 host_port(u32 host, u8 path) const noexcept {
    return first_port[host] + path % (first_port[host + 1] - first_port[host]);
  }
  // What routers see of a path between two hosts.
  u32 hash_of(u32 from, u32 to, u8 path) const noexcept;

  std::vector<FabricPort> ports;
  std::vector<u32> first_port;  // by node; its ports follow one another
  std::vector<u32> opposite;    // the port of the same link in the other direction, or kNone

 private:
  u32 hosts_ = 0, groups_ = 0;
  u64 seed_ = 0;
  bool even_ = false;
  std::vector<u32> group_of_;
  std::vector<i32> route_;
  std::vector<u32> set_begin_, set_ports_;
  struct Attached {
    u32 node, port;  // a switch, and its port that leads to the host
  };
  std::vector<u32> attached_begin_;  // by host, into attached_
  std::vector<Attached> attached_;
};

}  // namespace weft::sim
