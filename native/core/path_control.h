// Asks the path policy of a peer for paths, tells it what happened on them, and keeps its record of each path up to
// date. PathSet limits the answers.
#pragma once

#include "native/core/path_state.h"
#include "native/core/policy_slot.h"
#include "native/core/shared.h"

namespace weft::core {

// The paths as they are now. `states`: one entry per path.
struct PathFacts {
  i64 now_ns = 0;
  i64 segment_bytes = 0;  // payload of the largest segment
  const PathState* states = nullptr;
};

class PathControl {
 public:
  PathControl(Shared* shared, PolicyChoice choice, u32 peer, u16 count) noexcept
      : shared_(shared), peer_(peer), count_(count), policy_(policy::Family::path, choice) {}

  // Returns an event with the fields that all kinds of events have. The caller sets its kind and the other fields.
  policy::PathEvent event(const PathFacts& facts) noexcept {
    policy::PathEvent event{};
    event.now_ns = facts.now_ns;
    event.n_paths = count_;
    event.segment_bytes = facts.segment_bytes;
    event.avoid_path = -1;
    event.flow = -1;
    event.rand = shared_->random.uniform();
    event.rand2 = shared_->random.uniform();
    return event;
  }
  // Calls a hook. The first call opens the policy's records, so that a peer to which nothing is sent needs none. A
  // policy that fails is replaced by `fixed`. False when out of memory: `result` must then be ignored.
  bool ask(std::size_t hook, const PathFacts& facts, policy::PathEvent* event, policy::PathResult* result) noexcept;
  // Copies a path's state into the policy's record of the path.
  void mirror(u8 path, const PathState& state) noexcept {
    if (!policy_.is_open()) return;
    auto* head = static_cast<policy::PathHead*>(policy_.shared(path));
    head->usable = state.usable ? 1 : 0;
    head->inflight_bytes = state.inflight_bytes;
    head->rtt_ns = state.rtt.smoothed_ns();
  }
  void prefetch(u8 path) const noexcept { policy_.prefetch_shared(path); }
  void prefetch() const noexcept { policy_.prefetch_flow(); }
  // Switches to another policy. False when out of memory: the old policy stays.
  bool replace(const PathFacts& facts, PolicyChoice choice) noexcept;
  bool set_params(PolicyChoice choice) noexcept { return policy_.set_params(choice); }
  PolicyChoice choice() const noexcept { return policy_.choice(); }
  std::size_t bytes_held() const noexcept { return policy_.bytes_held(); }

 private:
  bool start(const PathFacts& facts) noexcept;
  void mirror_all(const PathState* states) noexcept {
    for (std::size_t i = 0; i < count_; ++i) mirror(static_cast<u8>(i), states[i]);
  }

  Shared* shared_;
  u32 peer_;
  u16 count_;
  bool started_ = false;
  PolicySlot policy_;
};

}  // namespace weft::core
