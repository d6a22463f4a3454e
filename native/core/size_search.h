// Searches for the largest datagram that the paths to a peer carry, if they do not carry the agreed size (RFC 8899,
// DPLPMTUD). All paths use the same size. Larger sizes are tried again later.
#pragma once

#include <array>
#include <memory>
#include <new>

#include "native/core/types.h"

namespace weft::core {

// State of the size search for one path.
struct PathSize {
  i64 carried_ns = -1;    // when a datagram of the current size last got through; -1: never
  i64 small_ns = -1;      // while the path is silent: when the peer last answered a packet sent on it; -1: not yet
  u64 small_id = 0;       // id of the pending short probe; 0: none
  i64 small_sent_ns = 0;  // when the probe `small_id` was sent
  u16 suspects = 0;       // long segments lost since `carried_ns`
  u16 suspect_bytes = 0;  // payload of the longest segment that `suspects` counts
  u16 carried_bytes = 0;  // size of the largest answered probe of this round
  bool small_due = false;
};

class SizeSearch {
 public:
  // Every path is assumed to carry datagrams of this size (MIN_PLPMTU of RFC 8899). If the size is lowered,
  // longer segments are resent in fragments; even at this size, the fragments of one segment fit into one burst.
  static constexpr u16 kBytesMin = 576;
  // A path counts as down after this many consecutive losses of long segments, even if shorter segments get through.
  static constexpr u16 kSuspectsMax = 8;
  // Time until a larger size is tried. RFC 8899 waits 600 s (PMTU_RAISE_TIMER); the first attempts come earlier here,
  // because a misconfigured switch may be repaired soon.
  static constexpr i64 kRaiseNsMin = 10'000'000'000, kRaiseNsMax = 600'000'000'000;
  static constexpr int kTriesMax = 3;  // attempts per round (MAX_PROBES of RFC 8899)

  SizeSearch(u16 agreed_bytes, u16 path_count);

  u16 segment_bytes() const noexcept { return rungs_[in_force_]; }
  PathSize& path(std::size_t index) noexcept { return paths_[index]; }
  // Whether a payload fits into the smallest datagram; if so, its loss or arrival does not show which datagram
  // sizes a path carries.
  bool is_small(u16 payload_bytes) const noexcept {
    return payload_bytes <= wire::segment_payload_bytes(rungs_[rung_count_ - 1]);
  }

  // A segment with this payload arrived. True: the path carries datagrams of the current size.
  bool on_acked(i64 now_ns, u8 path, u16 payload_bytes) noexcept;
  void on_proof(i64 now_ns, u8 path) noexcept;
  // Segments were lost on the path, the oldest sent at `sent_ns`, the longest with `payload_bytes`. True: the caller
  // must treat the path as silent (not usable).
  bool on_lost(u8 path, i64 sent_ns, u16 payload_bytes, i64 segments) noexcept;
  void on_silent(u8 path) noexcept;

  // Whether a search round is running. A round probes several sizes on several paths: larger ones to raise the size, or
  // the current and smaller ones to lower it.
  bool in_round() const noexcept { return round_id_ != 0; }
  bool raises() const noexcept { return raises_; }
  bool may_raise(i64 now_ns) const noexcept { return in_force_ != 0 && now_ns >= raise_ns_; }
  bool may_fall(i64 now_ns) const noexcept { return now_ns >= fall_ns_; }
  void start(i64 now_ns, u64 random, bool raises, i64 timeout_ns) noexcept;
  void add_path(std::size_t path) noexcept;
  void stop() noexcept { round_id_ = 0; }
  // Gets the next probe to send in this round; false: none.
  bool poll_probe(u8* path, u64* probe_id, u16* bytes) noexcept;
  // Handles the answer to a probe. False: the id belongs to no probe of this round.
  bool on_reply(i64 now_ns, u8 path, u64 probe_id, i64 settle_ns) noexcept;
  bool is_over(i64 now_ns) const noexcept { return in_round() && cursor_ == end_ && now_ns >= deadline_ns_; }
  // Sends the unanswered probes again, because they may have been lost by chance. False: no retries are left, or the
  // needed answers have arrived.
  bool again(i64 now_ns) noexcept;
  // Ends the round and returns the size found: the largest that any path carries or, if the size is being raised, that
  // half of all paths carry. 0: none.
  u16 take_found() noexcept;
  // Sets the datagram size. True if it changed.
  bool set(i64 now_ns, u16 bytes) noexcept;
  void postpone(i64 now_ns, i64 fall_ns_max) noexcept;
  i64 poll_timeout(bool any_usable, bool enough_to_raise, bool any_small) const noexcept;

 private:
  static constexpr std::size_t kRungsMax = 16;  // four bits of a probe's id select the size
  static constexpr u16 kLadder[] = {8972, 8952, 4052, 1472, 1452, 1402, 1372, 1252, 1232, kBytesMin};

  std::size_t first_rung() const noexcept { return raises_ ? 0 : in_force_; }
  std::size_t end_rung() const noexcept { return raises_ ? in_force_ : rung_count_; }
  bool in_round(std::size_t path) const noexcept { return (round_paths_[path / 64] >> (path % 64) & 1u) != 0; }

  std::array<u16, kRungsMax> rungs_{};  // the sizes to try, largest first; the first is the size agreed with the peer
  std::size_t rung_count_ = 0, in_force_ = 0;
  std::unique_ptr<PathSize[]> paths_;
  std::array<u64, kMaxPaths / 64> round_paths_{};
  u64 round_id_ = 0;
  std::size_t cursor_ = 0, end_ = 0;  // next probe and end of the round: path index * number of sizes + size index
  i64 deadline_ns_ = kNever, timeout_ns_ = 0;
  i64 raise_ns_ = kNever, raise_interval_ns_ = kRaiseNsMin;
  i64 fall_ns_ = 0, fall_interval_ns_ = 0;
  int tries_ = 0;
  u16 path_count_;
  bool raises_ = false;
};

}  // namespace weft::core
