// Limits what the path policy answers and detects silent paths. If the policy picks a path that does not exist, is
// silent or full, another path is used. A silent path is probed at doubling intervals until a probe is answered.
#include "native/core/path_set.h"

#include <algorithm>

namespace weft::core {

PathSet::PathSet(Shared* shared, PolicyChoice choice, u32 peer, u16 count, i64 room_bytes, i64 segment_bytes,
                 u16 search_bytes, PathCells* counters, i64 open_bytes)
    : shared_(shared),
      peer_(peer),
      gate_(open_bytes),
      room_bytes_(room_bytes),
      segment_bytes_(segment_bytes),
      count_(count),
      counters_(counters),
      readable_(counters),
      size_(search_bytes == 0 ? nullptr : std::make_unique<SizeSearch>(search_bytes, count)),
      usable_count_(count),
      policy_(shared, choice ? choice : shared->config.path, peer, count) {
  for (std::size_t i = 0; counters_ != nullptr && i < count_; ++i) counters_[i].usable.set(1);
}

bool PathSet::states() noexcept {
  if (paths_ != nullptr) return true;
  if (counters_ == nullptr) {
    own_counters_.reset(new (std::nothrow) PathCells[count_]);
    if (own_counters_ == nullptr) return false;
    counters_ = own_counters_.get();
    for (std::size_t i = 0; i < count_; ++i) {
      counters_[i].usable.set(1);
      counters_[i].rtt_ns.set(untouched_.rtt.smoothed_ns());
    }
    readable_.store(counters_, std::memory_order_release);
  }
  paths_.reset(new (std::nothrow) PathState[count_]);
  if (paths_ != nullptr) std::fill_n(paths_.get(), count_, untouched_);
  return paths_ != nullptr;
}

void PathSet::on_sample(u8 path, RttSample rtt) noexcept {
  paths_[path].rtt.on_sample(rtt.rtt_ns, rtt.host_ns);
  counters_[path].rtt_ns.set(paths_[path].rtt.smoothed_ns());
}

int PathSet::next_with_room(std::size_t from, int avoid, i64 bytes) const noexcept {
  int fallback = -1;
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t path = (from + i) % count_;
    if (!eligible(path) || !room(path, bytes)) continue;
    if (static_cast<int>(path) != avoid) return static_cast<int>(path);
    fallback = avoid;  // the path to avoid is better than none
  }
  return fallback;
}

bool PathSet::has_room(i64 bytes) const noexcept { return next_with_room(0, -1, bytes) >= 0; }

Pick PathSet::pick(i64 now_ns, const PickRequest& request) noexcept {
  if (!states()) return Pick{};
  const PathFacts facts = this->facts(now_ns);
  policy::PathEvent event = policy_.event(facts);
  event.kind = policy::path_kind::pick;
  event.ready_bytes = request.ready_bytes;
  event.segment_bytes = request.segment_bytes;
  event.is_resend = request.is_resend ? 1 : 0;
  event.avoid_path = request.avoid_path;
  event.flow = request.flow;
  policy::PathResult result{};
  result.path = -1;
  const bool answered = policy_.ask(policy::hook::path_pick, facts, &event, &result);
  const i64 count = count_;
  const bool valid = answered && result.path >= 0 && result.path < count;
  std::size_t wanted = valid ? static_cast<std::size_t>(result.path) : static_cast<std::size_t>(event.rand * 256.0);
  wanted %= count_;
  if (!valid || !eligible(wanted) || result.burst_bytes < 0) ++shared_->counters->results_corrected;
  const bool avoided = request.avoid_path == static_cast<int>(wanted) && (usable_count_ > 1 || usable_count_ == 0);
  Pick pick;
  pick.path = valid && !avoided && eligible(wanted) && room(wanted, request.segment_bytes)
                  ? static_cast<int>(wanted)
                  : next_with_room(wanted + (avoided ? 1 : 0), request.avoid_path, request.segment_bytes);
  pick.burst_bytes = std::max(answered ? result.burst_bytes : 0, request.segment_bytes);
  if (tries_only()) pick.burst_bytes = request.segment_bytes;
  if (pick.path >= 0) {
    const i64 left = room_bytes_ - paths_[static_cast<std::size_t>(pick.path)].inflight_bytes;
    pick.burst_bytes = std::max(std::min(pick.burst_bytes, left), request.segment_bytes);
  }
  return pick;
}

void PathSet::on_sent(u8 path, i64 bytes, i64 segments) noexcept {
  if (!states()) return;
  PathState& state = paths_[path];
  state.inflight_bytes += bytes;
  counters_[path].bytes_sent += bytes;
  counters_[path].segments_sent += segments;
  policy_.mirror(path, paths_[path]);
}

void PathSet::on_feedback(i64 now_ns, u8 path, Feedback kind, RttSample rtt, i64 bytes, i64 flow) noexcept {
  if (!states()) return;
  if (rtt.rtt_ns >= 0) on_sample(path, rtt);
  on_heard(now_ns, path);
  policy_.mirror(path, paths_[path]);
  const PathFacts facts = this->facts(now_ns);
  policy::PathEvent event = policy_.event(facts);
  event.kind = static_cast<i64>(kind);
  event.path = path;
  event.rtt_ns = std::max<i64>(rtt.rtt_ns, 0);
  event.bytes = bytes;
  event.flow = flow;
  policy::PathResult result{};
  static_cast<void>(policy_.ask(policy::hook::path_feedback, facts, &event, &result));
}

void PathSet::set_probe(u8 path, i64 at_ns) noexcept {
  if (at_ns == kNever && troubles_ == nullptr) return;
  if (!troubles()) return;
  PathTrouble& trouble = troubles_[path];
  if (at_ns == kNever) paths_[path].probe_asked = false;  // a loss policy may request the cancelled probe again
  if (trouble.probe_ns == kNever && at_ns != kNever) ++probed_count_;
  if (trouble.probe_ns != kNever && at_ns == kNever) --probed_count_;
  trouble.probe_ns = at_ns;
}

i64 PathSet::probe_interval_ns(u8 path) const noexcept { return timeout_ns(path, 0); }

void PathSet::measure(i64 now_ns) noexcept {
  if (gate_.is_closed()) {
    if (probed_count_ == 0) ask_first(now_ns, first_path_);
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) measure_path(now_ns, static_cast<u8>(i));
}

void PathSet::measure_path(i64 now_ns, u8 path) noexcept {
  if (this->path(path).rtt.measured() || trouble(path).probe_ns != kNever || !states() || !troubles()) return;
  troubles_[path].probe_interval_ns = probe_interval_ns(path);
  troubles_[path].measures = 0;
  set_probe(path, now_ns);
}

// Before the peer's first answer: probes this path now, in place of the scheduled probe. As long as the peer does not
// answer, each later probe takes the next path.
void PathSet::ask_first(i64 now_ns, u8 path) noexcept {
  if (!states() || !troubles()) return;
  set_probe(first_path_, kNever);
  first_path_ = path;
  troubles_[path].probe_interval_ns = probe_interval_ns(path);
  troubles_[path].measures = 0;
  set_probe(path, now_ns);
}

void PathSet::on_probed_by_peer(i64 now_ns, u8 path) noexcept {
  if (gate_.is_closed()) return ask_first(now_ns, path);
  hasten_probe(now_ns, path);
  measure_path(now_ns, path);
}

void PathSet::note_life(i64 now_ns, u8 path) noexcept {
  if (now_ns - heard_ns_ >= shared_->config.peer_silence_ns) resumed_ns_ = now_ns;
  heard_ns_ = now_ns;
  heard_path_ = path;
}

bool PathSet::on_arrival(i64 now_ns, u8 path) noexcept {
  note_life(now_ns, path);
  if (this->path(path).usable) return false;
  hasten_probe(now_ns, path);
  return true;
}

bool PathSet::on_heard(i64 now_ns, u8 path) noexcept {
  note_life(now_ns, path);
  if (paths_ == nullptr) return false;  // nothing was sent to the peer yet, so the packet answers nothing
  if (gate_.is_closed()) {
    gate_.on_answer();
    measure(now_ns);
  }
  PathState& state = paths_[path];
  state.heard_ns = now_ns;
  if (size_ != nullptr && !state.usable) {
    size_->path(path).small_ns = now_ns;
    return false;
  }
  state.timeouts = 0;
  if (state.usable) return false;
  set_usable(now_ns, path, true);
  return true;
}

// Probes a silent path sooner because the peer sent something over it. The packet may be a replay, so early probes are
// limited to one per interval. The interval doubles, in case the round trip is longer than estimated: only the answer
// to the newest probe counts.
void PathSet::hasten_probe(i64 now_ns, u8 path) noexcept {
  if (this->path(path).usable || troubles_ == nullptr) return;
  PathTrouble& trouble = troubles_[path];
  const i64 soonest_ns = trouble.probe_sent_ns + timeout_ns(path, trouble.hastened);
  if (trouble.probe_ns == kNever || trouble.probe_ns <= soonest_ns) return;
  ++trouble.hastened;
  set_probe(path, std::max(now_ns, soonest_ns));
}

bool PathSet::on_timeout(i64 now_ns, u8 path, i64 sent_ns, i64 flow, u16 payload_bytes) noexcept {
  if (!states()) return false;
  PathState& state = paths_[path];
  if ((tells_size(payload_bytes) ? size_->path(path).carried_ns : state.heard_ns) >= sent_ns) return false;
  ++state.timeouts;
  if (state.usable) set_usable(now_ns, path, false);
  policy_.mirror(path, paths_[path]);
  const PathFacts facts = this->facts(now_ns);
  policy::PathEvent event = policy_.event(facts);
  event.kind = policy::path_kind::timeout;
  event.path = path;
  event.flow = flow;
  policy::PathResult result{};
  static_cast<void>(policy_.ask(policy::hook::path_feedback, facts, &event, &result));
  return true;
}

void PathSet::set_usable(i64 now_ns, u8 path, bool usable, bool long_vanish) noexcept {
  // Without memory for probes a silent path could never become usable again, so it is left usable.
  if (!usable && !troubles()) return;
  paths_[path].usable = usable;
  counters_[path].usable.set(usable ? 1 : 0);
  if (!usable) ++counters_[path].downs;
  if (size_ != nullptr && !usable) {
    size_->on_silent(path);
    troubles_[path].probe_id = 0;  // ignore an answer to the pending probe, which may be shorter than a segment
  }
  usable_count_ = usable ? usable_count_ + 1 : usable_count_ - 1;
  // The first probe is sent at once. If only the last segments of a message were lost, the path is usable again after
  // one round trip.
  set_probe(path, usable ? kNever : now_ns);
  if (troubles_ != nullptr) {
    troubles_[path].probe_interval_ns = probe_interval_ns(path);
    troubles_[path].hastened = 0;
  }
  policy_.mirror(path, paths_[path]);
  Event event{};
  event.kind = usable ? Event::Kind::path_up : Event::Kind::path_down;
  event.value = long_vanish ? 1 : 0;
  event.path = path;
  event.peer = peer_;
  shared_->report(event);
}

void PathSet::on_lost(i64 now_ns, u8 path, i64 segments, i64 sent_ns, u16 payload_bytes, i64 long_segments) noexcept {
  if (states()) counters_[path].segments_lost += segments;
  if (size_ == nullptr || long_segments == 0 || !states() || !paths_[path].usable) return;
  if (size_->on_lost(path, sent_ns, payload_bytes, long_segments)) set_usable(now_ns, path, false, true);
}

void PathSet::on_carried(i64 now_ns, u8 path, u16 payload_bytes) noexcept {
  if (size_ == nullptr || !states() || !size_->on_acked(now_ns, path, payload_bytes)) return;
  paths_[path].timeouts = 0;
  if (!paths_[path].usable) set_usable(now_ns, path, true);
}

bool PathSet::any_small() const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (size_->path(i).small_ns >= 0 && !path(i).usable) return true;
  }
  return false;
}

// Ends a round of the datagram size search when its time is over, and starts a round that is due.
void PathSet::search(i64 now_ns) noexcept {
  if (size_->in_round() && size_->raises() && usable_count_ == 0) size_->stop();
  if (size_->is_over(now_ns) && !size_->again(now_ns)) end_search(now_ns);
  if (size_->in_round()) return;
  const bool raises = usable_count_ != 0;
  if (!(raises ? enough_to_raise() && size_->may_raise(now_ns) : size_->may_fall(now_ns) && any_small())) return;
  i64 longest_ns = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!raises || path(i).usable) {
      longest_ns = std::max(longest_ns, timeout_ns(static_cast<u8>(i), 0));
    }
  }
  size_->start(now_ns, shared_->random.next(), raises, longest_ns);
  for (std::size_t i = 0; i < count_; ++i) {
    // If no path is usable, all paths are probed: one that carried long datagrams before may only have been slow.
    if (!raises || path(i).usable) size_->add_path(i);
  }
}

void PathSet::end_search(i64 now_ns) noexcept {
  const bool raises = size_->raises();
  const u16 found = size_->take_found();
  if (found == 0) return size_->postpone(now_ns, shared_->config.rto_ns_max);
  if (size_->set(now_ns, found)) {
    segment_bytes_ = wire::segment_payload_bytes(found);
    Event event{};
    event.kind = Event::Kind::segment_size;
    event.peer = peer_;
    event.value = found;
    shared_->report(event);
  }
  for (std::size_t i = 0; states() && i < count_; ++i) {
    if (size_->path(i).carried_bytes < found) {
      if (raises && paths_[i].usable) set_usable(now_ns, static_cast<u8>(i), false, true);
      continue;
    }
    size_->on_proof(now_ns, static_cast<u8>(i));
    paths_[i].timeouts = 0;
    if (!paths_[i].usable) set_usable(now_ns, static_cast<u8>(i), true);
    revived_ = true;
  }
}

int PathSet::poll_probe(i64 now_ns, u64* probe_id, u16* bytes) noexcept {
  *bytes = 0;
  if (size_ != nullptr) {
    search(now_ns);
    u8 path = 0;
    if (size_->poll_probe(&path, probe_id, bytes)) return path;
    for (std::size_t i = 0; i < count_; ++i) {
      PathSize& size = size_->path(i);
      if (!size.small_due) continue;
      size.small_due = false;
      *probe_id = size.small_id = shared_->random.next() >> 1;  // the top bit is 0: ids of a size search have it set
      size.small_sent_ns = now_ns;
      return static_cast<int>(i);
    }
  }
  const int path = due_probe(now_ns);
  if (path < 0) return -1;
  const auto index = static_cast<std::size_t>(path);
  PathState& state = paths_[index];
  PathTrouble& trouble = troubles_[index];
  trouble.probe_ns = now_ns + trouble.probe_interval_ns;
  trouble.probe_interval_ns = std::min(2 * trouble.probe_interval_ns, shared_->config.rto_ns_max);
  trouble.probe_id = shared_->random.next();
  trouble.probe_sent_ns = now_ns;
  trouble.probe_order_ns = state.probe_asked ? shared_->unique_ns(now_ns) : -1;
  // The probe is padded to segment size, to show whether the path carries segments. A short second probe shows whether
  // it carries anything.
  if (size_ != nullptr) {
    trouble.probe_id >>= 1;
    if (!state.usable || state.probe_asked) *bytes = segment_bytes();
    size_->path(index).small_due = !state.usable;
  }
  state.probe_asked = false;
  *probe_id = trouble.probe_id;
  return path;
}

// Returns the path of the next probe that is due; -1: none. Cancels due probes that are no longer needed.
int PathSet::due_probe(i64 now_ns) noexcept {
  if (probed_count_ == 0) return -1;
  for (std::size_t i = 0; i < count_; ++i) {
    const PathState& state = paths_[i];
    PathTrouble& trouble = troubles_[i];
    if (trouble.probe_ns > now_ns) continue;
    if (!state.usable || state.probe_asked) return static_cast<int>(i);
    // Cancels the probe: an acknowledgment has given an RTT sample meanwhile, or kMeasuresMax probes had no answer.
    if (state.rtt.measured() || trouble.measures >= kMeasuresMax) {
      set_probe(static_cast<u8>(i), kNever);
      continue;
    }
    if (!gate_.is_closed() || trouble.measures == 0) {
      ++trouble.measures;
      return static_cast<int>(i);
    }
    // Before the peer's first answer, each probe takes the next path, because the path of the last probe may be dead.
    set_probe(static_cast<u8>(i), kNever);
    const std::size_t next = (i + 1) % count_;
    troubles_[next].probe_interval_ns = trouble.probe_interval_ns;
    troubles_[next].measures = trouble.measures + 1;
    first_path_ = static_cast<u8>(next);
    set_probe(first_path_, now_ns);
    return static_cast<int>(next);
  }
  return -1;
}

void PathSet::ask_probe(i64 now_ns, u8 path) noexcept {
  if (!states()) return;
  PathState& state = paths_[path];
  // Ignores a request for a silent path, which is probed anyway, and a request within a round trip of the last probe,
  // because the answer to that probe tells as much.
  const bool recent = now_ns - trouble(path).probe_sent_ns < state.rtt.smoothed_ns();
  if (!state.usable || state.probe_asked || recent || !troubles()) return;
  state.probe_asked = true;
  troubles_[path].probe_interval_ns = probe_interval_ns(path);
  set_probe(path, now_ns);
}

// The RTT sample of an answered probe. The answer's wait in the local socket is subtracted; the probe's wait in the
// peer's socket is unknown.
RttSample PathSet::probe_sample(i64 sent_ns) const noexcept {
  const i64 rtt_ns = shared_->host.arrived_ns() - sent_ns;
  return rtt_ns > 0 ? RttSample{rtt_ns, shared_->host.late_ns()} : RttSample{};  // <= 0: the clock was changed
}

bool PathSet::on_probe_reply(i64 now_ns, u8 path, u64 probe_id) noexcept {
  if (size_ != nullptr && probe_id != 0 && states()) {
    PathSize& size = size_->path(path);
    const i64 settle_ns = timeout_ns(path, 0);
    if (size_->on_reply(now_ns, path, probe_id, settle_ns)) return false;
    if (probe_id == size.small_id) {
      size.small_id = 0;
      const RttSample rtt = probe_sample(size.small_sent_ns);
      if (rtt.rtt_ns >= 0) on_sample(path, rtt);
      static_cast<void>(on_heard(now_ns, path));
      return false;
    }
  }
  if (probe_id != trouble(path).probe_id || probe_id == 0) return false;
  PathTrouble& trouble = troubles_[path];
  trouble.probe_id = 0;
  const bool asked = trouble.probe_order_ns >= 0;
  if (asked) trouble.probed_sent_ns = std::max(trouble.probed_sent_ns, trouble.probe_order_ns);
  if (size_ != nullptr && (asked || !paths_[path].usable)) on_carried(now_ns, path, segment_payload_bytes());
  if (paths_[path].usable) set_probe(path, kNever);
  // `waited`: segments were sent before the first RTT sample and have a long timer; their loss timers can now be
  // shorter.
  const bool waited = !paths_[path].rtt.measured() && paths_[path].inflight_bytes != 0;
  on_feedback(now_ns, path, Feedback::good, probe_sample(trouble.probe_sent_ns), 0, -1);
  return asked || waited;
}

i64 PathSet::poll_timeout() const noexcept {
  i64 earliest = size_ == nullptr ? kNever : size_->poll_timeout(usable_count_ != 0, enough_to_raise(), any_small());
  if (probed_count_ == 0) return earliest;
  for (std::size_t i = 0; i < count_; ++i) earliest = std::min(earliest, troubles_[i].probe_ns);
  return earliest;
}

i64 PathSet::timeout_ns(u8 path, u32 backoff) const noexcept {
  const i64 allowance_ns = std::max(shared_->host.late_peak_ns(), away_.peak_ns());
  const StackConfig& config = shared_->config;
  return this->path(path).rtt.timeout_ns(config.rto_ns_min, config.rto_ns_max, backoff, allowance_ns);
}

// The timeout doubles with each expiry only if no path is usable. While other paths work, segments on a silent path
// should be resent soon.
i64 PathSet::rto_ns(u8 path) const noexcept {
  const PathState& state = this->path(path);
  const u32 backoff = any_usable() ? 0 : state.timeouts;
  return timeout_ns(path, backoff);
}

}  // namespace weft::core
