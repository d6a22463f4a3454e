// A switch: it routes and queues the packets of a window. If PFC is enabled, it counts how many bytes in its queues
// came from each link, and sends pause and resume frames.
#pragma once

#include <vector>

#include "native/sim/fabric/fabric_host.h"

namespace weft::sim {

class FabricSwitch {
 public:
  FabricSwitch(u32 node, const FabricPlan& plan, const FabricNet& net);

  // Handles all events of this switch before `end_ps`. Its ports are then advanced up to that time.
  void handle(FabricShared* shared, const FabricDue* dues, std::size_t count, i64 end_ps);
  // Called with PFC when a packet leaves a queue, or is lost from it (at_ps is 0 then).
  void on_left(FabricShared* shared, const FabricPacket& packet, i64 at_ps);

 private:
  struct Ingress {
    u32 port = 0;  // the port at the other end of this incoming link
    i64 bytes = 0;
    bool paused = false;
    i64 said_ps = 0;  // arrival time of the last PFC frame sent to that port
  };
  void touch(FabricNet& net, u32 port);
  u32 port_by_queues(const FabricNet& net, u32 to, i64 now_ps);
  void prefetch_queues(const FabricNet& net);
  void count(FabricShared* shared, const FabricPacket& packet, i64 now_ps);
  void say(FabricShared* shared, Ingress& ingress, bool pause, i64 now_ps);
  Ingress* ingress_of(u32 port) noexcept;

  u32 node_;
  core::Random random_;
  std::vector<u32> last_best_;              // DRILL: by set of ports, index of the best port of the last draw
  std::vector<u32> ways_;                   // for each event of the time window: port through which its packet leaves
  std::vector<u32> touched_;                // ports to bring up to date at the end of the time window
  std::vector<const FabricPacket*> heads_;  // used by prefetch_queues()
  std::vector<Ingress> ingress_;            // one per incoming link; empty without PFC
  i64 now_ps_ = 0;
};

}  // namespace weft::sim
