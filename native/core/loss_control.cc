// Calls the loss policy and limits its answers. A loss cutoff in the future is changed to the present. Whatever the
// policy answers, a segment counts as lost after four timeouts (P-2).
#include "native/core/loss_control.h"

#include <algorithm>

namespace weft::core {
namespace {

constexpr i64 kBackstopTimeouts = 4;
// Shortest time between two timer checks that a policy can ask for, so that it cannot keep an engine busy.
constexpr i64 kCheckNsMin = 10'000;

}  // namespace

void LossControl::start(const policy::LossEvent& event) noexcept {
  started_ = true;
  policy::LossEvent start = event;
  start.kind = -1;
  policy::LossResult result{-1, -1, -1, 0};
  if (policy_.call(policy::hook::start, &start, &result, shared_->trace, flow_)) return;
  shared_->on_policy_failed(policy_.descriptor(), policy::hook::start, flow_, kNone);
  if (policy_.fall_back()) static_cast<void>(policy_.call(policy::hook::start, &start, &result, shared_->trace, flow_));
}

LossCutoff LossControl::ask(std::size_t hook, i64 kind, const LossFacts& facts, FlowPath* path) noexcept {
  policy::LossEvent event{};
  event.now_ns = facts.now_ns;
  event.kind = kind;
  event.path = facts.path;
  event.segment_bytes = segment_bytes_;
  event.rtt_ns = std::max<i64>(facts.rtt_ns, 0);
  event.srtt_ns = facts.rtt->smoothed_ns();
  event.rttvar_ns = facts.rtt->variation_ns();
  event.rtt_min_ns = facts.rtt->min_ns();
  event.rto_ns = facts.rto_ns;
  event.newest_acked_sent_ns = path->newest_acked_sent_ns;
  event.oldest_inflight_sent_ns = facts.oldest_sent_ns;
  event.newest_inflight_sent_ns = facts.newest_sent_ns;
  event.highest_acked_seq = static_cast<i64>(facts.highest_acked_seq);
  event.cumulative_seq = static_cast<i64>(facts.cumulative_seq);
  event.acked_segments = facts.acked_segments;
  event.inflight_segments = path->inflight_segments;
  event.spurious_segments = facts.spurious_segments;
  event.sacked_segments = facts.sacked_segments;
  event.window_bytes = facts.window_bytes;
  event.probed_sent_ns = facts.probed_sent_ns;
  event.rand = shared_->random.uniform();
  if (!started_) start(event);

  policy::LossResult result{-1, -1, -1, 0};
  if (!policy_.call(hook, &event, &result, shared_->trace, flow_)) {
    shared_->on_policy_failed(policy_.descriptor(), hook, flow_, kNone);
    result = policy::LossResult{-1, -1, -1, 0};
    if (policy_.fall_back()) {
      start(event);
      static_cast<void>(policy_.call(hook, &event, &result, shared_->trace, flow_));
    }
  }

  LossCutoff cutoff;
  if (result.lost_sent_before_ns > facts.now_ns + 1) ++shared_->counters->results_corrected;
  cutoff.sent_before_ns = std::min(result.lost_sent_before_ns, facts.now_ns);
  cutoff.below_seq = result.lost_below_seq;
  cutoff.probe = result.probe != 0;
  if (facts.oldest_sent_ns < 0) {
    path->next_check_ns = kNever;
    return cutoff;
  }
  const i64 backstop_ns = facts.oldest_sent_ns + kBackstopTimeouts * facts.rto_ns;
  if (kind == 1 && backstop_ns <= facts.now_ns) {
    cutoff.sent_before_ns = std::max(cutoff.sent_before_ns, facts.now_ns - kBackstopTimeouts * facts.rto_ns + 1);
  }
  const i64 asked = result.next_check_ns >= 0 ? result.next_check_ns : facts.oldest_sent_ns + facts.rto_ns;
  path->next_check_ns = std::max(std::min(asked, backstop_ns), facts.now_ns + kCheckNsMin);
  return cutoff;
}

}  // namespace weft::core
