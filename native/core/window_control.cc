// Calls the window policy's hooks and limits the windows and rates that it returns. A policy that fails is replaced by
// `fixed`, which starts with the present window.
#include "native/core/window_control.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace weft::core {
namespace {

// Smallest window, in segments, unless the policy allows a smaller one. With a thousand senders to one receiver, every
// further segment in flight would queue at the last link.
constexpr double kWindowSegmentsMin = 1;
// The rate is at least one segment in this time, also with a window below one segment, because a lower rate would look
// like a hang.
constexpr i64 kSegmentNsMax = 100'000'000;
// Shortest time until a timer that a policy can ask for, so that it cannot keep an engine busy.
constexpr i64 kTimerNsMin = 10'000;

// Where the telemetry of the hops begins in an event. A policy that reads none of it was compiled for a record that
// ends here, so it costs nothing to leave it out.
constexpr std::size_t kWithoutHopsBytes = offsetof(policy::WindowEvent, hops);

void tell_hops(const wire::HopRecords* records, policy::WindowEvent* event) noexcept {
  std::memset(&event->hops, 0, sizeof *event - kWithoutHopsBytes);
  if (records == nullptr) return;
  event->hops = records->count;
  for (std::size_t i = 0; i < records->count; ++i) {
    const wire::HopRecord& hop = records->hops[i];
    event->hop_queue_bytes[i] = hop.queue_bytes;
    event->hop_tx_bytes[i] = hop.tx_bytes;
    event->hop_timestamp_ns[i] = hop.timestamp_ns;
    event->hop_link_bytes_per_s[i] = hop.link_bytes_per_s;
  }
  if (records->received_ns > records->sent_ns) event->one_way_ns = records->received_ns - records->sent_ns;
}

}  // namespace

WindowControl::WindowControl(Shared* shared, PolicyChoice choice, u32 flow, u16 segment_bytes) noexcept
    : shared_(shared), policy_(policy::Family::window, choice), flow_(flow), segment_bytes_(segment_bytes) {}

policy::WindowEvent WindowControl::event(const WindowFacts& facts, i64 kind) noexcept {
  policy::WindowEvent event;
  std::memset(static_cast<void*>(&event), 0, kWithoutHopsBytes);
  if (policy_.descriptor().event_bytes > kWithoutHopsBytes) tell_hops(facts.hops, &event);
  event.now_ns = facts.now_ns;
  event.kind = kind;
  event.path = facts.path;
  event.segment_bytes = segment_bytes_;
  if (facts.rtt != nullptr) {
    event.rtt_ns = facts.rtt_ns >= 0 ? facts.rtt_ns : facts.rtt->smoothed_network_ns();
    event.rtt_min_ns = facts.rtt->min_ns();
    event.srtt_ns = facts.rtt->expected_ns();
  }
  event.ack_delay_ns = facts.ack_delay_ns;
  event.acked_bytes = facts.acked_bytes;
  event.acked_segments = facts.acked_segments;
  event.ecn_segments = facts.ecn_segments;
  event.lost_bytes = facts.lost_bytes;
  event.lost_segments = facts.lost_segments;
  event.trimmed_segments = facts.trimmed_segments;
  event.message_bytes = facts.message_bytes;
  event.message_left_bytes = facts.message_left_bytes;
  event.sent_bytes = facts.sent_bytes;
  event.sent_segments = facts.sent_segments;
  event.delivery_bytes_per_s = facts.delivery.bytes_per_s;
  event.delivery_app_limited = facts.delivery.app_limited ? 1 : 0;
  event.inflight_bytes = facts.inflight_bytes;
  event.delivered_bytes = facts.delivered_bytes;
  event.window_bytes = window_bytes_;
  event.window_bytes_max = shared_->config.window_bytes_max;
  event.link_bytes_per_s = shared_->config.link_bytes_per_s;
  event.app_limited = facts.app_limited ? 1 : 0;
  event.rand = shared_->random.uniform();
  return event;
}

bool WindowControl::apply(const policy::WindowResult& result, const WindowFacts& facts) noexcept {
  if (!std::isfinite(result.window_bytes) || !std::isfinite(result.pacing_bytes_per_s) ||
      !std::isfinite(result.window_segments_min)) {
    return false;
  }
  const auto segment = static_cast<double>(segment_bytes_);
  const double least =
      result.window_segments_min > 0 ? std::min(result.window_segments_min, kWindowSegmentsMin) : kWindowSegmentsMin;
  const double low = std::max(least * segment, 1.0);
  const double high = std::max(static_cast<double>(shared_->config.window_bytes_max), segment);
  // A window outside the bounds is set to the nearest bound. A negative window or rate is an error of the policy and is
  // counted.
  if (result.window_bytes < 0 || result.pacing_bytes_per_s < 0) ++shared_->counters->results_corrected;
  const double window = std::clamp(result.window_bytes, low, high);
  window_bytes_ = static_cast<i64>(window);
  double rate = std::max(result.pacing_bytes_per_s, 0.0);
  // The last sample, not the smoothed RTT: with a segment in many round trips, that would be of long ago (Swift,
  // SIGCOMM 2020, Algorithm 1). If all segments so far were lost, there is no sample, and the least timeout is used.
  if (facts.rtt_ns > 0) rtt_ns_ = facts.rtt_ns;
  const bool partial = window < segment;
  if (partial) {
    const i64 rtt_ns = rtt_ns_ > 0 ? rtt_ns_ : shared_->config.rto_ns_min;
    // A gap lasts 0.5 to 1.5 times RTT / window, so that flows that began together do not lose together again.
    const double gap_rtts = 0.5 + shared_->random.uniform();
    const double rate_max = window * 1e9 / (static_cast<double>(std::max<i64>(rtt_ns, 1)) * gap_rtts);
    rate = rate > 0 ? std::min(rate, rate_max) : rate_max;
  }
  if (rate > 0) rate = std::max(rate, segment * 1e9 / static_cast<double>(kSegmentNsMax));
  if (partial || partial_) {
    pacer_.change_rate(rate, segment_bytes_);  // a window that grows again must not wait for the end of a long gap
  } else {
    pacer_.set_rate(rate);
  }
  partial_ = partial;
  if (policy_.has(policy::hook::window_timer)) {
    if (result.next_timer_ns < 0) timer_ns_ = kNever;
    if (result.next_timer_ns > 0) timer_ns_ = std::max(result.next_timer_ns, facts.now_ns + kTimerNsMin);
  }
  return true;
}

void WindowControl::on_timer(const WindowFacts& facts) noexcept {
  timer_ns_ = kNever;
  ask(policy::hook::window_timer, 3, facts);
}

// The result before a call.
policy::WindowResult WindowControl::standing() const noexcept { return {static_cast<double>(window_bytes_), 0, 0, 0}; }

void WindowControl::start(const WindowFacts& facts) noexcept {
  started_ = true;
  timer_ns_ = kNever;
  policy::WindowEvent start = event(facts.standing(), -1);
  start.hint_window_bytes = static_cast<double>(window_bytes_);
  policy::WindowResult result = standing();
  if (policy_.call(policy::hook::start, &start, &result, shared_->trace, flow_) && apply(result, facts)) return;
  shared_->on_policy_failed(policy_.descriptor(), policy::hook::start, flow_, kNone);
  result = policy::WindowResult{static_cast<double>(shared_->config.window_bytes_max) / 4, 0, 0, 0};
  if (policy_.fall_back()) static_cast<void>(policy_.call(policy::hook::start, &start, &result, shared_->trace, flow_));
  static_cast<void>(apply(result, facts));
}

void WindowControl::ask(std::size_t hook, i64 kind, const WindowFacts& facts) noexcept {
  if (!started_) start(facts);
  policy::WindowEvent event = this->event(facts, kind);
  policy::WindowResult result = standing();
  if (policy_.call(hook, &event, &result, shared_->trace, flow_) && apply(result, facts)) return;
  shared_->on_policy_failed(policy_.descriptor(), hook, flow_, kNone);
  if (policy_.fall_back()) start(facts);
}

bool WindowControl::replace(PolicyChoice choice, const WindowFacts& facts) noexcept {
  if (!policy_.replace(choice)) return false;
  if (started_) start(facts);
  return true;
}

}  // namespace weft::core
