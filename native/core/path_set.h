// The paths to one peer: chooses the path of each burst by a path policy, and tracks which paths are usable or silent.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "native/core/answer_gate.h"
#include "native/core/path_control.h"
#include "native/core/size_search.h"

namespace weft::core {

// An RTT sample: network time `rtt_ns` (-1: no sample) and the delay that the two hosts added.
struct RttSample {
  i64 rtt_ns = -1;
  i64 host_ns = 0;
};

// State of a path that is probed, because it is silent or has no RTT sample.
struct PathTrouble {
  i64 probe_ns = kNever;  // when the next probe is due; kNever: none is scheduled
  i64 probe_interval_ns = 0;
  u64 probe_id = 0;
  i64 probe_sent_ns = 0;    // when the probe `probe_id` was sent
  i64 probe_order_ns = -1;  // send time of the probe `probe_id` (Shared::unique_ns()); -1: no loss policy requested it
  i64 probed_sent_ns = -1;  // `probe_order_ns` of the newest answered probe; -1: none
  u32 hastened = 0;         // early probes since the path became silent, sent because the peer was heard on it
  u32 measures = 0;         // probes sent to get an RTT sample; reset by measure_path()
};

struct PickRequest {
  i64 ready_bytes = 0;
  i64 segment_bytes = 0;
  int avoid_path = -1;  // the path on which the segments to be resent were lost; -1: none
  bool is_resend = false;
  i64 flow = -1;  // hash of the flow that wants to send
};

struct Pick {
  int path = -1;  // -1: every path is full, the flow must wait for an acknowledgment
  i64 burst_bytes = 0;
};

class PathSet {
 public:
  static constexpr u32 kMeasuresMax = 3;
  enum class Feedback : i64 { good = 1, ecn = 2, nack = 3, timeout = 4 };

  // `search_bytes`: the agreed datagram size, which may be too long for some paths; 0: the size is fixed and not
  // searched. `counters`: one entry per path; null: allocated when something is sent.
  // `open_bytes`: see PeerConfig.
  PathSet(Shared* shared, PolicyChoice choice, u32 peer, u16 count, i64 room_bytes, i64 segment_bytes,
          u16 search_bytes = 0, PathCells* counters = nullptr, i64 open_bytes = -1);

  Pick pick(i64 now_ns, const PickRequest& request) noexcept;
  void on_sent(u8 path, i64 bytes, i64 segments) noexcept;
  // Bytes in flight on the path were acknowledged, declared lost or refused.
  void on_gone(u8 path, i64 bytes) noexcept { paths_[path].inflight_bytes -= bytes; }
  // `segments` were lost on the path, the oldest sent at `sent_ns`, the longest with `payload_bytes`. `long_segments`
  // of them are so long that their size may be the reason.
  void on_lost(i64 now_ns, u8 path, i64 segments, i64 sent_ns, u16 payload_bytes, i64 long_segments) noexcept;
  // A segment with this payload size is known to have arrived over this path.
  void on_carried(i64 now_ns, u8 path, u16 payload_bytes) noexcept;
  // Passes an acknowledgment's report on a path to the path policy. rtt.rtt_ns < 0: no RTT sample. `flow`: hash of the
  // flow; -1: a probe was answered.
  void on_feedback(i64 now_ns, u8 path, Feedback kind, RttSample rtt, i64 bytes, i64 flow) noexcept;
  // The loss timer declared segments lost, the oldest sent at `sent_ns`, the longest with `payload_bytes`. If nothing
  // was heard on the path since `sent_ns`, it becomes silent; otherwise returns false.
  bool on_timeout(i64 now_ns, u8 path, i64 sent_ns, i64 flow, u16 payload_bytes = 0) noexcept;
  // Handles the answer to a probe. True when flows must check the path for losses: a loss policy requested the probe,
  // or segments were sent before the round trip was known.
  bool on_probe_reply(i64 now_ns, u8 path, u64 probe_id) noexcept;
  void ask_probe(i64 now_ns, u8 path) noexcept;
  // Switches to another policy. False when out of memory: the old policy stays.
  bool replace(i64 now_ns, PolicyChoice choice) noexcept { return policy_.replace(facts(now_ns), choice); }
  // The peer answered something that was sent over this path, and the answer cannot be a replay. True if this made the
  // path usable, so that waiting flows may send.
  bool on_heard(i64 now_ns, u8 path) noexcept;
  // New data from the peer arrived over this path. The peer is alive, but the path may still fail in the sending
  // direction, so a silent path stays silent and is probed soon. True if the time of its next probe may have changed.
  bool on_arrival(i64 now_ns, u8 path) noexcept;
  // When the peer was last heard over any path; -1: never. heard_path() is that path.
  i64 heard_ns() const noexcept { return heard_ns_; }
  u8 heard_path() const noexcept { return heard_path_; }
  i64 resumed_ns() const noexcept { return resumed_ns_; }  // when the peer was heard again after its last silence
  // The peer sent a probe over this path. If the path is silent, it may work again, so its next probe is sent sooner. A
  // usable path without an RTT sample is probed again: earlier probes may have arrived before the peer was open.
  void on_probed_by_peer(i64 now_ns, u8 path) noexcept;
  // Limits what is sent before the peer's first answer.
  AnswerGate& gate() noexcept { return gate_; }
  const AnswerGate& gate() const noexcept { return gate_; }

  // Sets a known round-trip time for all paths, as if it had been measured.
  void know(i64 rtt_ns) noexcept {
    untouched_.rtt.on_sample(rtt_ns);
    for (std::size_t i = 0; counters_ != nullptr && i < count_; ++i)
      counters_[i].rtt_ns.set(untouched_.rtt.smoothed_ns());
  }
  // Sets an estimated round-trip time for all paths, used until the first RTT sample.
  void expect(i64 rtt_ns) noexcept { untouched_.rtt.expect(rtt_ns); }
  // Notes that a segment waited `away_ns` in the peer's socket because the peer's thread did not run.
  void on_peer_away(i64 now_ns, i64 away_ns) noexcept { away_.add(now_ns, away_ns); }
  // Probes every path without an RTT sample, because an end that only receives gets none from acknowledgments. At most
  // kMeasuresMax probes, at doubling intervals, are sent over a path that does not answer. Before the first answer of
  // an unauthenticated peer, kMeasuresMax probes are sent in all, each over another path.
  void measure(i64 now_ns) noexcept;
  // Returns the next path to probe now and schedules its next probe; -1: none is due. `bytes`: size to which the probe
  // must be padded; 0: no padding.
  int poll_probe(i64 now_ns, u64* probe_id, u16* bytes) noexcept;
  void on_probe_sent(u8 path) noexcept {
    if (counters_ != nullptr) ++counters_[path].probes_sent;
  }
  // Whether a size search has made a path usable since the last call, so that waiting flows may send.
  bool take_revived() noexcept { return std::exchange(revived_, false); }
  // Payload size of the largest segment. segment_bytes() is the size of its datagram.
  u16 segment_payload_bytes() const noexcept { return static_cast<u16>(segment_bytes_); }
  u16 segment_bytes() const noexcept {
    return size_ != nullptr ? size_->segment_bytes() : static_cast<u16>(segment_bytes_ + i64{wire::kDataBytes});
  }
  bool searches() const noexcept { return size_ != nullptr; }
  // Whether the loss or arrival of a payload of this size tells something about the datagram size that a path carries.
  bool tells_size(u16 payload_bytes) const noexcept { return size_ != nullptr && !size_->is_small(payload_bytes); }
  i64 poll_timeout() const noexcept;

  i64 rto_ns(u8 path) const noexcept;
  // Time until the first check for tail loss: two round trips (RFC 8985, section 7.2), but at most the timeout. Without
  // an RTT sample the timeout is very long, so the check comes after rto_ns_min: there may be a sample by then.
  i64 first_check_ns(u8 path) const noexcept {
    const RttEstimator& rtt = this->path(path).rtt;
    return std::min(rtt.measured() ? 2 * rtt.smoothed_ns() : shared_->config.rto_ns_min, rto_ns(path));
  }
  const PathState& path(std::size_t index) const noexcept { return paths_ != nullptr ? paths_[index] : untouched_; }
  // Counters of a path. May be called from any thread while the peer is open.
  telemetry::PathCounters counters(std::size_t index) const noexcept {
    const PathCells* const cells = readable_.load(std::memory_order_acquire);
    if (cells != nullptr) return telemetry::values(cells[index]);
    telemetry::PathCounters none;
    none.usable = 1;
    return none;
  }
  const PathTrouble& trouble(std::size_t index) const noexcept {
    static constexpr PathTrouble kNone;
    return troubles_ != nullptr ? troubles_[index] : kNone;
  }
  // Prefetches what feedback on the path accesses. prefetch() prefetches what a choice of a path accesses.
  void prefetch(u8 path) const noexcept {
    if (paths_ == nullptr) return;
    __builtin_prefetch(&paths_[path]);
    core::prefetch(&counters_[path], &counters_[path] + 1);
    policy_.prefetch(path);
  }
  void prefetch() const noexcept { policy_.prefetch(); }
  u16 count() const noexcept { return count_; }
  bool any_usable() const noexcept { return usable_count_ != 0; }
  bool has_room(i64 bytes) const noexcept;
  std::size_t bytes_held() const noexcept {
    const std::size_t troubles = troubles_ != nullptr ? sizeof(PathTrouble) : 0;
    const std::size_t states = paths_ != nullptr ? sizeof(PathState) : 0;
    const std::size_t counters = own_counters_ != nullptr ? sizeof(PathCells) : 0;
    const std::size_t sizes = size_ != nullptr ? sizeof(PathSize) : 0;
    return count_ * (states + counters + troubles + sizes) + policy_.bytes_held();
  }
  PathControl& policy() noexcept { return policy_; }

 private:
  PathFacts facts(i64 now_ns) const noexcept { return {now_ns, segment_bytes_, paths_.get()}; }
  // Allocates the path states at the first use. troubles() allocates the probing states. Both return false when out of
  // memory.
  bool states() noexcept;
  bool troubles() noexcept {
    if (troubles_ == nullptr) troubles_.reset(new (std::nothrow) PathTrouble[count_]);
    return troubles_ != nullptr;
  }
  void set_probe(u8 path, i64 at_ns) noexcept;
  void measure_path(i64 now_ns, u8 path) noexcept;
  void ask_first(i64 now_ns, u8 path) noexcept;
  int due_probe(i64 now_ns) noexcept;
  void hasten_probe(i64 now_ns, u8 path) noexcept;
  RttSample probe_sample(i64 sent_ns) const noexcept;
  void on_sample(u8 path, RttSample rtt) noexcept;
  void note_life(i64 now_ns, u8 path) noexcept;  // stores when the peer was heard, and over which path
  i64 probe_interval_ns(u8 path) const noexcept;
  i64 timeout_ns(u8 path, u32 backoff) const noexcept;
  // Makes a path usable or silent. `long_vanish`: the path loses only long datagrams and may carry shorter ones.
  void set_usable(i64 now_ns, u8 path, bool usable, bool long_vanish = false) noexcept;
  // If no path is known to carry segments, at most one segment is in flight on each.
  bool tries_only() const noexcept { return size_ != nullptr && usable_count_ == 0; }
  bool any_small() const noexcept;
  // The datagram size is raised only if half of all paths carry the larger size, so at least half must be usable.
  bool enough_to_raise() const noexcept { return 2 * usable_count_ >= count_; }
  void search(i64 now_ns) noexcept;
  void end_search(i64 now_ns) noexcept;
  bool room(std::size_t path, i64 bytes) const noexcept {
    if (tries_only()) return this->path(path).inflight_bytes == 0;
    return this->path(path).inflight_bytes == 0 || this->path(path).inflight_bytes + bytes <= room_bytes_;
  }
  bool eligible(std::size_t path) const noexcept { return this->path(path).usable || usable_count_ == 0; }
  int next_with_room(std::size_t from, int avoid, i64 bytes) const noexcept;

  Shared* shared_;
  u32 peer_;
  AnswerGate gate_;
  i64 room_bytes_;
  i64 segment_bytes_;  // payload of the largest datagram
  u16 count_;
  PathState untouched_;                     // the state of every path until something is sent
  std::unique_ptr<PathState[]> paths_;      // null until something is sent or probed
  PathCells* counters_;                     // null until something is counted
  std::atomic<const PathCells*> readable_;  // equals counters_; other threads read it
  std::unique_ptr<PathCells[]> own_counters_;
  std::unique_ptr<PathTrouble[]> troubles_;
  std::unique_ptr<SizeSearch> size_;  // null: the datagram size is fixed
  bool revived_ = false;
  i64 heard_ns_ = -1, resumed_ns_ = 0;
  HostPeak away_;  // longest recent scheduling delay of the peer's thread
  std::size_t usable_count_ = 0;
  std::size_t probed_count_ = 0;  // number of paths with a scheduled probe
  PathControl policy_;
  u8 heard_path_ = 0;
  u8 first_path_ = 0;  // before the peer's first answer: path of the pending or last probe
};

}  // namespace weft::core
