// The flows of a stack that are opened at their first use: a long message has a stripe for the flow, or the peer sends
// it a packet. Until then the stack keeps only the index of the flow's peer.
#pragma once

#include <vector>

#include "native/core/types.h"

namespace weft::core {

struct Flow;

// Supplies the configurations of deferred flows. The owner of the stack implements it.
class FlowSource {
 public:
  // Gets the configuration of a deferred flow. False: there is none.
  virtual bool config_of(u32 flow, FlowConfig* out) noexcept = 0;
  // A deferred flow was opened.
  virtual void on_flow_opened(u32 index, Flow* flow) noexcept = 0;

 protected:
  ~FlowSource() = default;
};

class DeferredFlows {
 public:
  void use(FlowSource* source) noexcept { source_ = source; }
  FlowSource* source() const noexcept { return source_; }
  // Allocates memory for all flows with smaller indices.
  void reserve(std::size_t flows) {
    if (peers_.size() < flows) peers_.resize(flows, kNone);
  }
  void add(u32 flow, u32 peer) noexcept { peers_[flow] = peer; }
  void remove(u32 flow) noexcept { peers_[flow] = kNone; }
  bool has(u32 flow) const noexcept { return flow < peers_.size() && peers_[flow] != kNone; }
  u32 peer_of(u32 flow) const noexcept { return peers_[flow]; }
  // Calls what(flow) for each deferred flow of the peer.
  template <class What>
  void each_of(u32 peer, const What& what) const {
    for (u32 flow = 0; flow < peers_.size(); ++flow) {
      if (peers_[flow] == peer) what(flow);
    }
  }

 private:
  FlowSource* source_ = nullptr;
  std::vector<u32> peers_;  // by flow: its peer; kNone: the flow is not deferred
};

}  // namespace weft::core
