// Asks the receiver-driven credit policy how many bytes a sender may send, at credit requests and timer ticks. It holds
// the policy's record of one flow.
#pragma once

#include <vector>

#include "native/core/policy_slot.h"
#include "native/core/shared.h"

namespace weft::core {

// What the flows of an engine with the same credit policy share: the policy's record of the NIC port that receives.
struct CreditPort {
  const policy::Descriptor* descriptor = nullptr;
  std::vector<i64> record;  // the policy's own data, initially zero; int64 elements align it
  i64 active_flows = 0;
};

class CreditControl {
 public:
  CreditControl(Shared* shared, CreditPort* port, PolicyChoice choice, u32 flow, u16 segment_bytes) noexcept
      : shared_(shared),
        port_(port),
        policy_(policy::Family::credit, choice),
        flow_(flow),
        segment_bytes_(segment_bytes) {}

  bool open() noexcept;
  u64 granted_bytes() const noexcept { return granted_bytes_; }
  CreditPort* port() noexcept { return port_; }
  void on_mark() noexcept { ++ecn_segments_; }
  // Takes over the grant and demand of the replaced policy, because a grant must not shrink.
  void resume(u64 granted_bytes, u64 demand_bytes) noexcept {
    granted_bytes_ = granted_bytes;
    demand_bytes_ = demand_bytes;
  }
  u64 demand_bytes() const noexcept { return demand_bytes_; }
  bool set_params(PolicyChoice choice) noexcept { return policy_.set_params(choice); }
  PolicyChoice choice() const noexcept { return policy_.choice(); }
  // Handles a credit request. True when the grant has grown and an acknowledgment should report it.
  bool on_demand(i64 now_ns, u64 demand_bytes, u64 received_bytes) noexcept;
  bool on_timer(i64 now_ns, u64 received_bytes) noexcept;
  i64 poll_timeout() const noexcept { return tick_ns_; }

 private:
  void start(policy::CreditEvent event) noexcept;
  bool ask(std::size_t hook, i64 kind, i64 now_ns, u64 received_bytes) noexcept;

  Shared* shared_;
  CreditPort* port_;
  PolicySlot policy_;
  u32 flow_;
  u16 segment_bytes_;
  bool started_ = false;
  i64 ecn_segments_ = 0;  // ECN marks since the last call of the policy
  u64 demand_bytes_ = 0;
  u64 granted_bytes_ = 0;
  i64 tick_ns_ = kNever;
};

}  // namespace weft::core
