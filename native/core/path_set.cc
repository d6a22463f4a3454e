// Path policy calls with the core's own checks around them: a choice that is unusable or full is corrected, not obeyed.
// A silent path is probed with doubling intervals and comes back with the first sign of life.
#include "native/core/path_set.h"

#include <algorithm>

namespace weft::core {

PathSet::PathSet(Shared* shared, PolicyChoice choice, u32 peer, u16 count, i64 room_bytes, i64 segment_bytes)
    : shared_(shared),
      peer_(peer),
      room_bytes_(room_bytes),
      segment_bytes_(segment_bytes),
      paths_(count),
      usable_count_(count),
      policy_(policy::Family::path, choice ? choice : shared->config.path) {}

bool PathSet::open() noexcept { return policy_.open(paths_.size()); }

policy::PathEvent PathSet::event(i64 now_ns) noexcept {
  policy::PathEvent event{};
  event.now_ns = now_ns;
  event.n_paths = static_cast<i64>(paths_.size());
  event.segment_bytes = segment_bytes_;
  event.avoid_path = -1;
  event.flow = -1;
  event.rand = shared_->random.uniform();
  event.rand2 = shared_->random.uniform();
  return event;
}

void PathSet::start_policy(i64 now_ns) noexcept {
  started_ = true;
  for (std::size_t i = 0; i < paths_.size(); ++i) mirror(static_cast<u8>(i));
  policy::PathEvent start = event(now_ns);
  start.kind = -1;
  policy::PathResult result{};
  if (policy_.call(policy::hook::start, &start, &result, shared_->tap, peer_)) return;
  shared_->on_policy_failed(policy_.descriptor(), policy::hook::start, kNone, peer_);
  if (!policy_.fall_back()) return;  // out of memory: the core's own choice of a path stands behind every pick
  for (std::size_t i = 0; i < paths_.size(); ++i) mirror(static_cast<u8>(i));
  static_cast<void>(policy_.call(policy::hook::start, &start, &result, shared_->tap, peer_));  // `fixed` cannot fail
}

bool PathSet::ask(std::size_t hook, policy::PathEvent* event, policy::PathResult* result) noexcept {
  if (!started_) start_policy(event->now_ns);
  if (policy_.call(hook, event, result, shared_->tap, peer_)) return true;
  shared_->on_policy_failed(policy_.descriptor(), hook, kNone, peer_);
  if (policy_.fall_back()) start_policy(event->now_ns);
  *result = policy::PathResult{};
  return policy_.call(hook, event, result, shared_->tap, peer_);
}

void PathSet::mirror(u8 path) noexcept {
  auto* head = static_cast<policy::PathHead*>(policy_.shared(path));
  head->usable = paths_[path].usable ? 1 : 0;
  head->inflight_bytes = paths_[path].inflight_bytes;
  head->rtt_ns = paths_[path].rtt.smoothed_ns();
}

int PathSet::next_with_room(std::size_t from, int avoid, i64 bytes) const noexcept {
  int fallback = -1;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const std::size_t path = (from + i) % paths_.size();
    if (!eligible(path) || !room(path, bytes)) continue;
    if (static_cast<int>(path) != avoid) return static_cast<int>(path);
    fallback = avoid;  // better the same path than none
  }
  return fallback;
}

bool PathSet::has_room(i64 bytes) const noexcept { return next_with_room(0, -1, bytes) >= 0; }

Pick PathSet::pick(i64 now_ns, const PickRequest& request) noexcept {
  policy::PathEvent event = this->event(now_ns);
  event.kind = policy::path_kind::pick;
  event.ready_bytes = request.ready_bytes;
  event.segment_bytes = request.segment_bytes;
  event.is_resend = request.is_resend ? 1 : 0;
  event.avoid_path = request.avoid_path;
  event.flow = request.flow;
  policy::PathResult result{};
  result.path = -1;
  const bool answered = ask(policy::hook::path_pick, &event, &result);
  const auto count = static_cast<i64>(paths_.size());
  const bool valid = answered && result.path >= 0 && result.path < count;
  std::size_t wanted = valid ? static_cast<std::size_t>(result.path) : static_cast<std::size_t>(event.rand * 256.0);
  wanted %= paths_.size();
  if (!valid || !eligible(wanted) || result.burst_bytes < 0) ++shared_->counters.results_corrected;
  const bool avoided = request.avoid_path == static_cast<int>(wanted) && (usable_count_ > 1 || usable_count_ == 0);
  Pick pick;
  pick.path = valid && !avoided && eligible(wanted) && room(wanted, request.segment_bytes)
                  ? static_cast<int>(wanted)
                  : next_with_room(wanted + (avoided ? 1 : 0), request.avoid_path, request.segment_bytes);
  pick.burst_bytes = std::max(answered ? result.burst_bytes : 0, request.segment_bytes);
  if (pick.path >= 0) {
    const i64 left = room_bytes_ - paths_[static_cast<std::size_t>(pick.path)].inflight_bytes;
    pick.burst_bytes = std::max(std::min(pick.burst_bytes, left), request.segment_bytes);
  }
  return pick;
}

void PathSet::on_sent(u8 path, i64 bytes, i64 segments) noexcept {
  PathState& state = paths_[path];
  state.inflight_bytes += bytes;
  state.bytes_sent += bytes;
  state.segments_sent += segments;
  mirror(path);
}

void PathSet::on_feedback(i64 now_ns, u8 path, Feedback kind, i64 rtt_ns, i64 bytes, i64 flow) noexcept {
  PathState& state = paths_[path];
  if (rtt_ns >= 0) state.rtt.on_sample(rtt_ns);
  on_heard(now_ns, path);
  mirror(path);
  policy::PathEvent event = this->event(now_ns);
  event.kind = static_cast<i64>(kind);
  event.path = path;
  event.rtt_ns = std::max<i64>(rtt_ns, 0);
  event.bytes = bytes;
  event.flow = flow;
  policy::PathResult result{};
  static_cast<void>(ask(policy::hook::path_feedback, &event, &result));
}

void PathSet::set_probe(PathState* state, i64 at_ns) noexcept {
  if (state->probe_ns == kNever && at_ns != kNever) ++probed_count_;
  if (state->probe_ns != kNever && at_ns == kNever) --probed_count_;
  state->probe_ns = at_ns;
}

void PathSet::measure(i64 now_ns) noexcept {
  for (PathState& state : paths_) {
    if (state.rtt.measured() || state.probe_ns != kNever) continue;
    state.probe_interval_ns = state.rtt.timeout_ns(shared_->config.rto_ns_min, shared_->config.rto_ns_max, 0);
    set_probe(&state, now_ns);
  }
}

void PathSet::on_heard(i64 now_ns, u8 path) noexcept {
  PathState& state = paths_[path];
  state.heard_ns = now_ns;
  state.timeouts = 0;
  if (!state.usable) set_usable(now_ns, path, true);
}

bool PathSet::on_timeout(i64 now_ns, u8 path, i64 sent_ns, i64 flow) noexcept {
  PathState& state = paths_[path];
  if (state.heard_ns >= sent_ns) return false;
  ++state.timeouts;
  if (state.usable) set_usable(now_ns, path, false);
  mirror(path);
  policy::PathEvent event = this->event(now_ns);
  event.kind = policy::path_kind::timeout;
  event.path = path;
  event.flow = flow;
  policy::PathResult result{};
  static_cast<void>(ask(policy::hook::path_feedback, &event, &result));
  return true;
}

void PathSet::set_usable(i64 now_ns, u8 path, bool usable) noexcept {
  PathState& state = paths_[path];
  state.usable = usable;
  usable_count_ = usable ? usable_count_ + 1 : usable_count_ - 1;
  // The first probe leaves at once: a path that lost only the tail of a message is back after one round trip.
  set_probe(&state, usable ? kNever : now_ns);
  state.probe_interval_ns = state.rtt.timeout_ns(shared_->config.rto_ns_min, shared_->config.rto_ns_max, 0);
  mirror(path);
  Event event{};
  event.kind = usable ? Event::Kind::path_up : Event::Kind::path_down;
  event.path = path;
  event.peer = peer_;
  shared_->events.push(event);
}

int PathSet::poll_probe(i64 now_ns, u64* probe_id) noexcept {
  if (probed_count_ == 0) return -1;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    PathState& state = paths_[i];
    if (state.probe_ns > now_ns) continue;
    if (state.usable && state.rtt.measured() && !state.probe_asked) {
      set_probe(&state, kNever);  // traffic has measured it meanwhile
      continue;
    }
    state.probe_ns = now_ns + state.probe_interval_ns;
    state.probe_interval_ns = std::min(2 * state.probe_interval_ns, shared_->config.rto_ns_max);
    state.probe_id = shared_->random.next();
    state.probe_sent_ns = now_ns;
    state.probe_order_ns = state.probe_asked ? shared_->unique_ns(now_ns) : -1;
    state.probe_asked = false;
    *probe_id = state.probe_id;
    return static_cast<int>(i);
  }
  return -1;
}

void PathSet::ask_probe(i64 now_ns, u8 path) noexcept {
  PathState& state = paths_[path];
  // A silent path is probed anyway; one probe a round trip says all there is to say.
  if (!state.usable || state.probe_asked || now_ns - state.probe_sent_ns < state.rtt.smoothed_ns()) return;
  state.probe_asked = true;
  state.probe_interval_ns = state.rtt.timeout_ns(shared_->config.rto_ns_min, shared_->config.rto_ns_max, 0);
  set_probe(&state, now_ns);
}

bool PathSet::on_probe_reply(i64 now_ns, u8 path, u64 probe_id) noexcept {
  PathState& state = paths_[path];
  if (probe_id != state.probe_id || probe_id == 0) return false;
  state.probe_id = 0;
  const bool asked = state.probe_order_ns >= 0;
  if (asked) state.probed_sent_ns = std::max(state.probed_sent_ns, state.probe_order_ns);
  if (state.usable) set_probe(&state, kNever);
  on_feedback(now_ns, path, Feedback::good, now_ns - state.probe_sent_ns, 0, -1);
  return asked;
}

bool PathSet::replace(i64 now_ns, PolicyChoice choice) noexcept {
  if (!policy_.replace(choice)) return false;
  for (std::size_t i = 0; i < paths_.size(); ++i) mirror(static_cast<u8>(i));
  if (started_) start_policy(now_ns);
  return true;
}

i64 PathSet::poll_timeout() const noexcept {
  if (probed_count_ == 0) return kNever;
  i64 earliest = kNever;
  for (const PathState& state : paths_) earliest = std::min(earliest, state.probe_ns);
  return earliest;
}

// What is still in flight on a path that fell silent is not to wait ever longer while others carry: only when no path
// answers is patience doubled.
i64 PathSet::rto_ns(u8 path) const noexcept {
  const u32 backoff = any_usable() ? 0 : paths_[path].timeouts;
  return paths_[path].rtt.timeout_ns(shared_->config.rto_ns_min, shared_->config.rto_ns_max, backoff);
}

}  // namespace weft::core
