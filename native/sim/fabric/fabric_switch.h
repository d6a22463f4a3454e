// A switch: routes and queues a window's packets, and applies PFC if enabled, for which it counts each ingress link's
// bytes in its queues.
#pragma once

#include <vector>

#include "native/sim/fabric/fabric_host.h"

namespace weft::sim {

class FabricSwitch {
 public:
  FabricSwitch(u32 node, const FabricPlan& plan, const FabricNet& net);

  // Handles all events of this switch before `end_ps`; its ports are then settled.
  void handle(FabricShared* shared, const FabricDue* dues, std::size_t count, i64 end_ps);
  // PFC: a packet has left a queue, or was lost from it (at_ps 0).
  void on_left(FabricShared* shared, const FabricPacket& packet, i64 at_ps);
  i64 unroutable() const noexcept { return unroutable_; }

 private:
  struct Ingress {
    u32 port = 0;  // the port at the other end of the link, which leads here
    i64 bytes = 0;
    bool paused = false;
    i64 said_ps = 0;  // when the last PFC frame to it arrives
  };
  void touch(FabricNet& net, u32 port);
  void count(FabricShared* shared, const FabricPacket& packet, i64 now_ps);
  void say(FabricShared* shared, Ingress& ingress, bool pause, i64 now_ps);
  Ingress* ingress_of(u32 port) noexcept;

  u32 node_;
  std::vector<u32> ways_;         // by event: the port that the packet leaves by
  std::vector<u32> touched_;      // ports to settle at the end of the window
  std::vector<Ingress> ingress_;  // only with PFC
  i64 now_ps_ = 0;
  i64 unroutable_ = 0;
};

}  // namespace weft::sim
