// Chooses the path of each burst by the peer's path policy, and tracks the health of the paths: usable or silent,
// probed, usable again.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "native/core/policy_slot.h"
#include "native/core/rtt_estimator.h"
#include "native/core/shared.h"
#include "native/core/size_search.h"

namespace weft::core {

// Per-path state that every packet touches: one cache line.
struct alignas(64) PathState {
  RttEstimator rtt;
  i64 inflight_bytes = 0;
  i64 heard_ns = -1;  // last time that the peer answered something sent over this path; -1: never
  u32 timeouts = 0;   // consecutive ones, with nothing heard in between
  bool usable = true;
  bool probe_asked = false;  // a loss policy asked for a probe of this usable path
};
static_assert(sizeof(PathState) == 64);

// An RTT sample: the network's part, and the delay that the two hosts added; rtt_ns -1: no sample.
struct RttSample {
  i64 rtt_ns = -1;
  i64 host_ns = 0;
};

// State of a path that is being measured or probed, or is silent.
struct PathTrouble {
  i64 probe_ns = kNever;  // when the next probe is due; kNever: none
  i64 probe_interval_ns = 0;
  u64 probe_id = 0;
  i64 probe_sent_ns = 0;    // when that probe was sent
  i64 probe_order_ns = -1;  // its position among the unique send times; -1: not requested by a loss policy
  i64 probed_sent_ns = -1;  // such position of the newest answered probe
  u32 hastened = 0;         // probes sent early since the path went silent, because the peer was heard on it
};

struct PickRequest {
  i64 ready_bytes = 0;
  i64 segment_bytes = 0;
  int avoid_path = -1;  // the path that lost the segments to be resent
  bool is_resend = false;
  i64 flow = -1;  // hash of the flow that asks
};

struct Pick {
  int path = -1;  // -1: every path is full; wait for an acknowledgment
  i64 burst_bytes = 0;
};

class PathSet {
 public:
  enum class Feedback : i64 { good = 1, ecn = 2, nack = 3, timeout = 4 };

  // `search_bytes`: datagrams of this size may be too long for some paths, so sizes are searched; 0: no search.
  // `counters`: one entry per path; null: own storage, allocated when something is sent.
  PathSet(Shared* shared, PolicyChoice choice, u32 peer, u16 count, i64 room_bytes, i64 segment_bytes,
          u16 search_bytes = 0, PathCells* counters = nullptr);

  Pick pick(i64 now_ns, const PickRequest& request) noexcept;
  void on_sent(u8 path, i64 bytes, i64 segments) noexcept;
  void on_gone(u8 path, i64 bytes) noexcept { paths_[path].inflight_bytes -= bytes; }  // acknowledged, lost or refused
  // `long_segments` of the `segments` are long enough to be evidence about the size that the path carries; the longest
  // has `payload_bytes`. The oldest of them was sent at `sent_ns`.
  void on_lost(i64 now_ns, u8 path, i64 segments, i64 sent_ns, u16 payload_bytes, i64 long_segments) noexcept;
  // A segment with this payload size arrived over this path and no other.
  void on_carried(i64 now_ns, u8 path, u16 payload_bytes) noexcept;
  // An acknowledgment reports on `path`; rtt.rtt_ns < 0: without an RTT sample. `flow`: hash of the flow it
  // acknowledges; -1: none.
  void on_feedback(i64 now_ns, u8 path, Feedback kind, RttSample rtt, i64 bytes, i64 flow) noexcept;
  // The loss timer declared segments lost, the oldest sent at `sent_ns`, the longest with `payload_bytes`. A path from
  // which nothing was heard since then becomes silent. False: something was heard, so this is loss, not silence.
  bool on_timeout(i64 now_ns, u8 path, i64 sent_ns, i64 flow, u16 payload_bytes = 0) noexcept;
  // True when flows must check what they have in flight on the path: a loss policy asked for this probe, or the flows
  // sent before the round trip was known.
  bool on_probe_reply(i64 now_ns, u8 path, u64 probe_id) noexcept;
  void ask_probe(i64 now_ns, u8 path) noexcept;
  // Switches to another policy. False when out of memory: the old one stays.
  bool replace(i64 now_ns, PolicyChoice choice) noexcept;
  // The peer answered something that was sent over this path, in a way that can't be a replay. True when this made the
  // path usable: flows that wait for room may try again.
  bool on_heard(i64 now_ns, u8 path) noexcept;
  // New data from the peer arrived over this path. That proves that the peer is alive, but nothing about our direction,
  // for which switches choose links independently: a silent path stays silent but is probed soon. True when the time of
  // its next probe may have changed.
  bool on_arrival(i64 now_ns, u8 path) noexcept;
  // When the peer was last heard over any path (-1: never), and over which.
  i64 heard_ns() const noexcept { return heard_ns_; }
  u8 heard_path() const noexcept { return heard_path_; }
  i64 resumed_ns() const noexcept { return resumed_ns_; }  // when it was last heard again after a silence
  // The peer probes a path that is silent here, so the path may work again; our own probe is sent sooner.
  void on_probed_by_peer(i64 now_ns, u8 path) noexcept { hasten_probe(now_ns, path); }

  // Sets the round trip of all paths, if it is known beforehand.
  void know(i64 rtt_ns) noexcept {
    untouched_.rtt.on_sample(rtt_ns);
    for (std::size_t i = 0; counters_ != nullptr && i < count_; ++i)
      counters_[i].rtt_ns.set(untouched_.rtt.smoothed_ns());
  }
  // Sets an estimate of the round trip, used until the first sample.
  void expect(i64 rtt_ns) noexcept { untouched_.rtt.expect(rtt_ns); }
  // The peer's thread did not run for `away_ns` while a segment of ours waited in its socket.
  void on_peer_away(i64 now_ns, i64 away_ns) noexcept { away_.add(now_ns, away_ns); }
  // Probes every path without an RTT sample; an end that only receives would otherwise have no timeout estimate.
  void measure(i64 now_ns) noexcept;
  // Returns the next path with a due probe and reschedules it, or -1. `bytes`: size to pad the probe to; 0: no padding.
  int poll_probe(i64 now_ns, u64* probe_id, u16* bytes) noexcept;
  void on_probe_sent(u8 path) noexcept {
    if (counters_ != nullptr) ++counters_[path].probes_sent;
  }
  // Whether a size search has made a path usable since the last call; flows that wait for room may then try again.
  bool take_revived() noexcept { return std::exchange(revived_, false); }
  // Payload size of the largest segment to send, and the size of its datagram.
  u16 segment_payload_bytes() const noexcept { return static_cast<u16>(segment_bytes_); }
  u16 segment_bytes() const noexcept {
    return size_ != nullptr ? size_->segment_bytes() : static_cast<u16>(segment_bytes_ + i64{wire::kDataBytes});
  }
  bool searches() const noexcept { return size_ != nullptr; }
  // Whether a payload is long enough to be evidence about sizes.
  bool tells_size(u16 payload_bytes) const noexcept { return size_ != nullptr && !size_->is_small(payload_bytes); }
  i64 poll_timeout() const noexcept;

  i64 rto_ns(u8 path) const noexcept;
  // When the loss policy is first asked about a tail: after two round trips (RFC 8985, section 7.2), but no later than
  // the timeout. An unmeasured path's timeout allows for any round trip, so its first check comes earlier, by which
  // time there may be a sample.
  i64 first_check_ns(u8 path) const noexcept {
    const RttEstimator& rtt = this->path(path).rtt;
    return std::min(rtt.measured() ? 2 * rtt.smoothed_ns() : shared_->config.rto_ns_min, rto_ns(path));
  }
  const PathState& path(std::size_t index) const noexcept { return paths_ != nullptr ? paths_[index] : untouched_; }
  // Any thread, while the peer is open.
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
  PolicySlot& policy() noexcept { return policy_; }

 private:
  bool start_policy(i64 now_ns) noexcept;
  // Allocates storage that is needed only from some point on. False when out of memory.
  bool states() noexcept;
  bool troubles() noexcept {
    if (troubles_ == nullptr) troubles_.reset(new (std::nothrow) PathTrouble[count_]);
    return troubles_ != nullptr;
  }
  void set_probe(u8 path, i64 at_ns) noexcept;
  void hasten_probe(i64 now_ns, u8 path) noexcept;
  RttSample probe_sample(i64 sent_ns) const noexcept;
  void on_sample(u8 path, RttSample rtt) noexcept;
  void note_life(i64 now_ns, u8 path) noexcept;  // notes that the peer was heard over this path
  i64 probe_interval_ns(u8 path) const noexcept;
  i64 timeout_ns(u8 path, u32 backoff) const noexcept;
  // `long_vanish`: only long datagrams are lost; the path may carry shorter ones.
  void set_usable(i64 now_ns, u8 path, bool usable, bool long_vanish = false) noexcept;
  void mirror(u8 path) noexcept;  // copies the fields that a policy may read into its path record
  // While no path is known to carry segments, each path is tried with one segment at a time.
  bool tries_only() const noexcept { return size_ != nullptr && usable_count_ == 0; }
  bool any_small() const noexcept;
  // A larger size must be carried by half of all paths, so a search for one needs that many usable paths.
  bool enough_to_raise() const noexcept { return 2 * usable_count_ >= count_; }
  void search(i64 now_ns) noexcept;
  void end_search(i64 now_ns) noexcept;
  bool room(std::size_t path, i64 bytes) const noexcept {
    if (tries_only()) return this->path(path).inflight_bytes == 0;
    return this->path(path).inflight_bytes == 0 || this->path(path).inflight_bytes + bytes <= room_bytes_;
  }
  bool eligible(std::size_t path) const noexcept { return this->path(path).usable || usable_count_ == 0; }
  int next_with_room(std::size_t from, int avoid, i64 bytes) const noexcept;
  policy::PathEvent event(i64 now_ns) noexcept;
  bool ask(std::size_t hook, policy::PathEvent* event, policy::PathResult* result) noexcept;

  Shared* shared_;
  u32 peer_;
  i64 room_bytes_;
  i64 segment_bytes_;  // payload of the largest datagram, and the smallest burst
  u16 count_;
  PathState untouched_;                     // stands for every path until the first use of any
  std::unique_ptr<PathState[]> paths_;      // null: nothing was sent or probed yet
  PathCells* counters_;                     // null: nothing has been counted
  std::atomic<const PathCells*> readable_;  // counters_, for other threads
  std::unique_ptr<PathCells[]> own_counters_;
  std::unique_ptr<PathTrouble[]> troubles_;
  std::unique_ptr<SizeSearch> size_;  // null: the size is fixed
  bool revived_ = false;
  i64 heard_ns_ = -1, resumed_ns_ = 0;
  HostPeak away_;  // delays of the peer's thread
  std::size_t usable_count_ = 0;
  std::size_t probed_count_ = 0;  // paths with a scheduled probe
  PolicySlot policy_;
  bool started_ = false;
  u8 heard_path_ = 0;
};

}  // namespace weft::core
