// The policies of a stack's flows and peers: replaces them, or changes their parameters, between two bursts. Segments
// in flight are not affected.
#pragma once

#include <memory>
#include <vector>

#include "native/core/flow.h"
#include "native/core/slot_table.h"

namespace weft::core {

class StackPolicies {
 public:
  // Is notified of each flow whose policy was replaced, because the flow may send now or have other timers.
  class Owner {
   public:
    virtual void on_policy_replaced(i64 now_ns, u32 flow) noexcept = 0;
    // Opens a flow, if it is deferred, whose policy will be changed. False: out of memory.
    virtual bool open_for_policy(i64 now_ns, u32 flow) noexcept = 0;

   protected:
    ~Owner() = default;
  };

  StackPolicies(Owner* owner, Shared* shared, SlotTable<Peer>* peers, SlotTable<Flow>* flows) noexcept
      : owner_(owner), shared_(shared), peers_(peers), flows_(flows) {}

  // Changes the policy of a flow. `params_only`: changes only the parameters of the present policy; if that is `fixed`
  // because a policy failed, nothing changes. False: out of memory.
  bool set(i64 now_ns, policy::Family family, u32 flow, PolicyChoice choice, bool params_only) noexcept;
  // Changes the policy of all present and future flows and peers that have no policy choice of their own.
  bool set_default(i64 now_ns, policy::Family family, PolicyChoice choice, bool params_only) noexcept;
  // The policy that a flow uses now; for paths, the policy of its peer. Empty: no credit policy, or no such flow.
  PolicyChoice in_force(policy::Family family, u32 flow) const noexcept;
  // Lists all policies that flows, peers or defaults refer to. All other policies may be unloaded.
  void list_in_use(std::vector<PolicyChoice>* out) const;
  // Returns the credit policy's record of the receiving NIC port, which all flows with this policy share; null for no
  // policy. Deletes records that no flow uses. May throw std::bad_alloc.
  CreditPort* credit_port(PolicyChoice choice);

 private:
  bool change_flow(i64 now_ns, policy::Family family, u32 index, PolicyChoice choice, bool params_only) noexcept;
  bool change_path(i64 now_ns, u32 peer, PolicyChoice choice, bool params_only) noexcept;
  void report_replaced(i64 now_ns, policy::Family family, u32 flow, u32 peer) noexcept;

  Owner* owner_;
  Shared* shared_;
  SlotTable<Peer>* peers_;
  SlotTable<Flow>* flows_;
  std::vector<std::unique_ptr<CreditPort>> credit_ports_;
};

}  // namespace weft::core
