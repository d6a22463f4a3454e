// Chooses the path of a burst by the peer's path policy, and keeps each path's health: usable, silent, probed, back.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "native/core/policy_slot.h"
#include "native/core/rtt_estimator.h"
#include "native/core/shared.h"
#include "native/core/size_search.h"

namespace weft::core {

// What every packet touches: a cache line.
struct alignas(64) PathState {
  RttEstimator rtt;
  i64 inflight_bytes = 0;
  i64 heard_ns = -1;  // when it last proved that it carries something to the peer
  u32 timeouts = 0;   // in a row, with nothing heard between
  bool usable = true;
  bool probe_asked = false;  // a loss policy wants to know, of a path that is usable
};
static_assert(sizeof(PathState) == 64);

// A measured round trip: the network's part of it, and what the hosts added; -1: no sample.
struct RttSample {
  i64 rtt_ns = -1;
  i64 host_ns = 0;
};

// What a path needs that is measured, probed, or has lost something.
struct PathTrouble {
  i64 probe_ns = kNever;  // when the next probe is due; kNever while the path is usable
  i64 probe_interval_ns = 0;
  u64 probe_id = 0;
  i64 probe_sent_ns = 0;    // of that probe
  i64 probe_order_ns = -1;  // that probe's place among the segments' send times
  i64 probed_sent_ns = -1;  // and of the newest such probe that came back
  u32 hastened = 0;         // probes since the path fell silent that left early, because the peer was heard on it
};

struct PickRequest {
  i64 ready_bytes = 0;
  i64 segment_bytes = 0;
  int avoid_path = -1;  // the path that lost what is to be resent
  bool is_resend = false;
  i64 flow = -1;  // a hash of the flow that asks
};

struct Pick {
  int path = -1;  // -1: every path is full; wait for an acknowledgment
  i64 burst_bytes = 0;
};

class PathSet {
 public:
  enum class Feedback : i64 { good = 1, ecn = 2, nack = 3, timeout = 4 };

  // `search_bytes`: datagrams of this size may prove too long for a path; 0: they do not.
  // `counters`: one a path; null: storage of our own, once something is sent.
  PathSet(Shared* shared, PolicyChoice choice, u32 peer, u16 count, i64 room_bytes, i64 segment_bytes,
          u16 search_bytes = 0, PathCells* counters = nullptr);

  Pick pick(i64 now_ns, const PickRequest& request) noexcept;
  void on_sent(u8 path, i64 bytes, i64 segments) noexcept;
  void on_gone(u8 path, i64 bytes) noexcept { paths_[path].inflight_bytes -= bytes; }  // acknowledged or lost
  // Of `segments` so many as `long_segments` say something about the size that the path carries; the longest of them
  // has `payload_bytes`. What was sent before `sent_ns` is not among them.
  void on_lost(i64 now_ns, u8 path, i64 segments, i64 sent_ns, u16 payload_bytes, i64 long_segments) noexcept;
  // A segment of this payload has come through, on this path and no other.
  void on_carried(i64 now_ns, u8 path, u16 payload_bytes) noexcept;
  // An acknowledgment came over `path`; rtt_ns < 0 when it carried no sample.
  // `flow`: whose acknowledgment it was, -1 of no flow.
  void on_feedback(i64 now_ns, u8 path, Feedback kind, RttSample rtt, i64 bytes, i64 flow) noexcept;
  // Segments sent at `sent_ns` or later ran into their timer. A path silent since then stops being chosen.
  // False: something came back since, so it was a loss and no silence.
  // `payload_bytes`: of the longest of them.
  bool on_timeout(i64 now_ns, u8 path, i64 sent_ns, i64 flow, u16 payload_bytes = 0) noexcept;
  // True when flows are to look at what they have in flight there: a loss policy had asked for the probe, or they sent
  // before the path's round trip was known.
  bool on_probe_reply(i64 now_ns, u8 path, u64 probe_id) noexcept;
  void ask_probe(i64 now_ns, u8 path) noexcept;
  // Another policy from now on. False when out of memory: the old one stays.
  bool replace(i64 now_ns, PolicyChoice choice) noexcept;
  // The peer answered something that went over this path, which cannot be a replay. True when the path came back by it:
  // flows that wait for room may look again.
  bool on_heard(i64 now_ns, u8 path) noexcept;
  // New data from the peer arrived over this path. That proves that the peer lives, and nothing about the opposite
  // direction, for which switches choose links independently: a silent path stays silent and is probed soon. True when
  // the time of its next probe may have changed.
  bool on_arrival(i64 now_ns, u8 path) noexcept;
  // When that was last, over any path (-1: never), and over which.
  i64 heard_ns() const noexcept { return heard_ns_; }
  u8 heard_path() const noexcept { return heard_path_; }
  i64 resumed_ns() const noexcept { return resumed_ns_; }  // when it was heard after a silence
  // The peer probes a path that is silent here: it may be back, so our own probe does not wait for its turn.
  void on_probed_by_peer(i64 now_ns, u8 path) noexcept { hasten_probe(now_ns, path); }

  // Every path's round trip, known from before.
  void know(i64 rtt_ns) noexcept {
    untouched_.rtt.on_sample(rtt_ns);
    for (std::size_t i = 0; counters_ != nullptr && i < count_; ++i)
      counters_[i].rtt_ns.set(untouched_.rtt.smoothed_ns());
  }
  // An estimate of it, until the first sample.
  void expect(i64 rtt_ns) noexcept { untouched_.rtt.expect(rtt_ns); }
  // The peer's thread did not run for so long while a segment of ours lay in its socket.
  void on_peer_away(i64 now_ns, i64 away_ns) noexcept { away_.add(now_ns, away_ns); }
  // Asks every path that has no RTT yet for one: a side that only receives would otherwise never know how long to wait.
  void measure(i64 now_ns) noexcept;
  // The next path whose probe is due, or -1; moves its timer on. `bytes`: how long the probe is to be, 0: as it is.
  int poll_probe(i64 now_ns, u64* probe_id, u16* bytes) noexcept;
  void on_probe_sent(u8 path) noexcept {
    if (counters_ != nullptr) ++counters_[path].probes_sent;
  }
  // A search has made a path usable since this was last asked: who waits for room may look again.
  bool take_revived() noexcept { return std::exchange(revived_, false); }
  // Payload of the longest segment that is to be sent, and the datagram's size.
  u16 segment_payload_bytes() const noexcept { return static_cast<u16>(segment_bytes_); }
  u16 segment_bytes() const noexcept {
    return size_ != nullptr ? size_->segment_bytes() : static_cast<u16>(segment_bytes_ + i64{wire::kDataBytes});
  }
  bool searches() const noexcept { return size_ != nullptr; }
  // Whether a payload is long enough to say something about sizes.
  bool tells_size(u16 payload_bytes) const noexcept { return size_ != nullptr && !size_->is_small(payload_bytes); }
  i64 poll_timeout() const noexcept;

  i64 rto_ns(u8 path) const noexcept;
  // When a loss policy is first asked about a tail: two round trips (RFC 8985, section 7.2), or the timeout. Where the
  // round trip is not known the timeout allows for any: a look comes sooner, as it may have become known meanwhile.
  i64 first_check_ns(u8 path) const noexcept {
    const RttEstimator& rtt = this->path(path).rtt;
    return std::min(rtt.measured() ? 2 * rtt.smoothed_ns() : shared_->config.rto_ns_min, rto_ns(path));
  }
  const PathState& path(std::size_t index) const noexcept { return paths_ != nullptr ? paths_[index] : untouched_; }
  telemetry::PathCounters counters(std::size_t index) const noexcept {
    if (counters_ != nullptr) return telemetry::values(counters_[index]);
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
  // Storage that is made when it is first needed. False: there is none to be had.
  bool states() noexcept;
  bool troubles() noexcept {
    if (troubles_ == nullptr) troubles_.reset(new (std::nothrow) PathTrouble[count_]);
    return troubles_ != nullptr;
  }
  void set_probe(u8 path, i64 at_ns) noexcept;
  void hasten_probe(i64 now_ns, u8 path) noexcept;
  RttSample probe_sample(i64 sent_ns) const noexcept;
  void on_sample(u8 path, RttSample rtt) noexcept;
  void note_life(i64 now_ns, u8 path) noexcept;  // the peer was heard over this path
  i64 probe_interval_ns(u8 path) const noexcept;
  i64 timeout_ns(u8 path, u32 backoff) const noexcept;
  // `long_vanish`: the path may carry shorter datagrams than those of a segment.
  void set_usable(i64 now_ns, u8 path, bool usable, bool long_vanish = false) noexcept;
  void mirror(u8 path) noexcept;  // copies what the policy may read into its path record
  // Where no path is known to carry segments, one each is tried.
  bool tries_only() const noexcept { return size_ != nullptr && usable_count_ == 0; }
  bool any_small() const noexcept;
  // A larger segment has to be carried by half of all paths: with fewer usable there is nothing to try.
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
  i64 segment_bytes_;  // payload of the largest datagram: the least burst
  u16 count_;
  PathState untouched_;                 // stands for each until something is sent or asked over one
  std::unique_ptr<PathState[]> paths_;  // a peer that is only received from has none
  PathCells* counters_;                 // null: nothing has been counted
  std::unique_ptr<PathCells[]> own_counters_;
  std::unique_ptr<PathTrouble[]> troubles_;
  std::unique_ptr<SizeSearch> size_;  // null: no size has to be found out
  bool revived_ = false;
  i64 heard_ns_ = -1, resumed_ns_ = 0;
  HostPeak away_;  // the peer's
  std::size_t usable_count_ = 0;
  std::size_t probed_count_ = 0;  // paths with a probe to come
  PolicySlot policy_;
  bool started_ = false;
  u8 heard_path_ = 0;
};

}  // namespace weft::core
