// The ports and routes of the network: through which port of a switch a packet leaves.
#pragma once

#include <vector>

#include "native/sim/fabric/fabric_port.h"

namespace weft::sim {

class FabricNet {
 public:
  void open(const FabricPlan& plan, const FabricRules* rules);

  // The port of switch `node` that leads to the packet's destination at time at_ps; kNone: there is no route.
  u32 route(u32 node, FabricPacket* packet, i64 at_ps) const noexcept;
  // The ports of switch `node` that lead to a host; their set is kNone if the host is attached to the switch.
  struct Ways {
    u32 set = core::kNone;
    const u32* ports = nullptr;
    u32 count = 0;
  };
  Ways ways(u32 node, u32 to, i64 at_ps) const noexcept;
  Ecmp ecmp() const noexcept { return ecmp_; }
  // The path whose links packets of `path` take at time at_ps: `path` itself, unless the plan has a PathChoice for it.
  u8 taken(u32 from, u32 to, u8 path, i64 at_ps) const noexcept {
    return choices_.empty() ? path : chosen(from, to, path, at_ps);
  }
  // The port through which a host sends packets that take the links of a path.
  u32 host_port(u32 host, u8 path) const noexcept {
    return first_port[host] + path % (first_port[host + 1] - first_port[host]);
  }
  // The value that switches hash to select a port, for packets that take the links of a path between two hosts.
  u32 hash_of(u32 from, u32 to, u8 path) const noexcept;
  // Writes to `out`, in order, the ports that packets of a path pass at the beginning of the run, and returns their
  // number; 0 if there is no route of at most kHopsMax ports, or if switches select ports by their queues.
  static constexpr std::size_t kHopsMax = 8;
  std::size_t ports_of(u32 from, u32 to, u8 path, u32* out) const noexcept;

  std::vector<FabricPort> ports;
  std::vector<u32> first_port;        // index of each node's first port; the ports of a node follow one another
  std::vector<u32> opposite;          // the port for the other direction of the same link, or kNone
  std::vector<FabricBuffer> buffers;  // one per switch; empty: none is shared

 private:
  void choose(const std::vector<PathChoice>& given);
  void share_buffers(const FabricPlan& plan, const FabricRules& rules);
  u8 chosen(u32 from, u32 to, u8 path, i64 at_ps) const noexcept;

  u32 hosts_ = 0, groups_ = 0;
  u64 seed_ = 0;
  Ecmp ecmp_ = Ecmp::hashed;
  std::vector<u32> group_of_;
  std::vector<FabricRules> switch_rules_;  // one per switch, with its buffer; empty: no buffer is shared
  std::vector<i32> route_;                 // the tables, one after the other
  std::vector<i64> route_at_ps_;           // when each but the first begins
  std::vector<u32> set_begin_, set_ports_;
  struct Attached {
    u32 node, port;  // a switch, and its port that leads to the host
  };
  std::vector<u32> attached_begin_;  // per host: index of its first entry in attached_
  std::vector<Attached> attached_;
  struct Choice {
    u64 ends;         // sending host << 32 | receiving host
    i64 at_ps;        // time from which the choice applies
    std::size_t row;  // index in takes_ of the choice's entry for path 0; those for paths 1, 2, ... follow
  };
  std::vector<Choice> choices_;  // sorted by `ends`, then by time
  std::vector<u8> takes_;        // for every choice, one entry per path: the path whose links its packets take
};

}  // namespace weft::sim
