// Asks the loss policy for the loss cutoff of each path and for the next timer check. A built-in deadline
// covers policies that never declare a loss.
#pragma once

#include "native/core/policy_slot.h"
#include "native/core/rtt_estimator.h"
#include "native/core/send_ledger.h"
#include "native/core/shared.h"

namespace weft::core {

// What a flow keeps for each path.
struct alignas(64) FlowPath {
  SegmentList order;  // the segments in flight on this path, oldest first
  i64 next_check_ns = kNever;
  i64 newest_acked_sent_ns = -1;
  i64 inflight_segments = 0;
  i64 acked_bytes = 0, acked_segments = 0;  // acknowledged since the last report on this path
  u32 reported_segments = 0;                // the receiver's segment counts in its last report
  u32 reported_ecn_segments = 0;
  bool reported = false;  // whether reported_segments and reported_ecn_segments come from a report
};

struct LossCutoff {
  i64 sent_before_ns = -1;
  i64 below_seq = -1;
  bool probe = false;  // send a probe on the path; its answer shows whether the last segments are lost
  bool names(const SentSegment& segment, u64 seq) const noexcept {
    return segment.sent_ns < sent_before_ns || static_cast<i64>(seq) < below_seq;
  }
};

struct LossFacts {
  i64 now_ns = 0;
  u8 path = 0;
  const RttEstimator* rtt = nullptr;
  i64 rtt_ns = -1;
  i64 rto_ns = 0;
  i64 oldest_sent_ns = -1, newest_sent_ns = -1;  // oldest and newest segment in flight on this path
  u64 highest_acked_seq = 0, cumulative_seq = 0;
  i64 acked_segments = 0, spurious_segments = 0, sacked_segments = 0;
  i64 window_bytes = 0;
  i64 probed_sent_ns = -1;
};

class LossControl {
 public:
  LossControl(Shared* shared, PolicyChoice choice, u32 flow, u16 segment_bytes) noexcept
      : shared_(shared), policy_(policy::Family::loss, choice), flow_(flow), segment_bytes_(segment_bytes) {}

  bool open(std::size_t path_count) noexcept { return policy_.open(path_count); }
  void close() noexcept {
    policy_.close();
    started_ = false;
  }
  // Switches to another policy, with new records. False when out of memory: the old policy stays.
  bool replace(PolicyChoice choice) noexcept {
    if (!policy_.replace(choice)) return false;
    started_ = false;
    return true;
  }
  bool set_params(PolicyChoice choice) noexcept { return policy_.set_params(choice); }
  PolicyChoice choice() const noexcept { return policy_.choice(); }
  void prefetch() const noexcept { policy_.prefetch_flow(); }
  void prefetch(u8 path) const noexcept { policy_.prefetch_shared(path); }
  // on_ack() and on_timer() set path->next_check_ns (kNever if nothing is in flight on the path).
  LossCutoff on_ack(const LossFacts& facts, FlowPath* path) noexcept {
    return ask(policy::hook::loss_ack, 0, facts, path);
  }
  LossCutoff on_timer(const LossFacts& facts, FlowPath* path) noexcept {
    return ask(policy::hook::loss_timer, 1, facts, path);
  }

 private:
  LossCutoff ask(std::size_t hook, i64 kind, const LossFacts& facts, FlowPath* path) noexcept;
  void start(const policy::LossEvent& event) noexcept;

  Shared* shared_;
  PolicySlot policy_;
  u32 flow_;
  u16 segment_bytes_;
  bool started_ = false;
};

}  // namespace weft::core
