// How long datagrams to a peer may be: finds out what its paths carry where they do not carry what was agreed on, and
// tries longer ones again later (RFC 8899, DPLPMTUD). One size for all paths.
#pragma once

#include <array>
#include <memory>
#include <new>

#include "native/core/types.h"

namespace weft::core {

// What is known of one path.
struct PathSize {
  i64 carried_ns = -1;    // newest proof that it carries datagrams of the size in force
  i64 small_ns = -1;      // when something came over it that says nothing of that, while it is silent
  u64 small_id = 0;       // of a probe that is not padded
  i64 small_sent_ns = 0;  // of that probe
  u16 suspects = 0;       // segments lost since the last proof
  u16 suspect_bytes = 0;  // payload of the longest of them
  u16 carried_bytes = 0;  // the longest probe of this round that came through
  bool small_due = false;
};

class SizeSearch {
 public:
  // RFC 8899's MIN_PLPMTU is what every path is taken to carry; ours must also keep a segment within a burst's number
  // of fragments.
  static constexpr u16 kBytesMin = 576;
  // So many lost in a row without proof make a path silent, though timers have not run out: shorter segments may get
  // through all the while.
  static constexpr u16 kSuspectsMax = 8;
  // RFC 8899 waits 600 s before it tries a longer datagram (PMTU_RAISE_TIMER); a wrong setting of a switch is mended
  // sooner than a route over the internet changes, so the first tries come earlier.
  static constexpr i64 kRaiseNsMin = 10'000'000'000, kRaiseNsMax = 600'000'000'000;
  static constexpr int kTriesMax = 3;  // MAX_PROBES

  SizeSearch(u16 agreed_bytes, u16 path_count);

  u16 segment_bytes() const noexcept { return rungs_[in_force_]; }
  PathSize& path(std::size_t index) noexcept { return paths_[index]; }
  // A payload so short that it fits the least of sizes says nothing about any.
  bool is_small(u16 payload_bytes) const noexcept {
    return payload_bytes <= wire::segment_payload_bytes(rungs_[rung_count_ - 1]);
  }

  // A segment of this payload came through. True: that proves the size in force.
  bool on_acked(i64 now_ns, u8 path, u16 payload_bytes) noexcept;
  void on_proof(i64 now_ns, u8 path) noexcept;
  // Segments sent at `sent_ns` or later are lost, the longest with this payload. True: the path is to be taken as
  // silent.
  bool on_lost(u8 path, i64 sent_ns, u16 payload_bytes, i64 segments) noexcept;
  void on_silent(u8 path) noexcept;

  // A round of probes of several sizes: of the sizes up to the one in force on paths that carry small datagrams alone,
  // or of those above it.
  bool in_round() const noexcept { return round_id_ != 0; }
  bool raises() const noexcept { return raises_; }
  bool may_raise(i64 now_ns) const noexcept { return in_force_ != 0 && now_ns >= raise_ns_; }
  bool may_fall(i64 now_ns) const noexcept { return now_ns >= fall_ns_; }
  void start(i64 now_ns, u64 random, bool raises, i64 timeout_ns) noexcept;
  void add_path(std::size_t path) noexcept;
  void stop() noexcept { round_id_ = 0; }
  // The next probe of the round.
  bool poll_probe(u8* path, u64* probe_id, u16* bytes) noexcept;
  // False: the answer to no probe of this round.
  bool on_reply(i64 now_ns, u8 path, u64 probe_id, i64 settle_ns) noexcept;
  bool is_over(i64 now_ns) const noexcept { return in_round() && cursor_ == end_ && now_ns >= deadline_ns_; }
  // The probes that were not answered go out once more: a loss is no limit. False: often enough, or nothing is missing.
  bool again(i64 now_ns) noexcept;
  // Ends the round. The size that it found: the longest that any path carries, or half of all paths (raise);
  // 0: none.
  u16 take_found() noexcept;
  // True: another than before.
  bool set(i64 now_ns, u16 bytes) noexcept;
  void postpone(i64 now_ns, i64 fall_ns_max) noexcept;
  i64 poll_timeout(bool any_usable, bool enough_to_raise, bool any_small) const noexcept;

 private:
  static constexpr std::size_t kRungsMax = 16;  // four bits of a probe's id
  static constexpr u16 kLadder[] = {8972, 8952, 4052, 1472, 1452, 1402, 1372, 1252, 1232, kBytesMin};

  std::size_t first_rung() const noexcept { return raises_ ? 0 : in_force_; }
  std::size_t end_rung() const noexcept { return raises_ ? in_force_ : rung_count_; }
  bool in_round(std::size_t path) const noexcept { return (round_paths_[path / 64] >> (path % 64) & 1u) != 0; }

  std::array<u16, kRungsMax> rungs_{};  // longest first; what was agreed on is the first
  std::size_t rung_count_ = 0, in_force_ = 0;
  std::unique_ptr<PathSize[]> paths_;
  std::array<u64, kMaxPaths / 64> round_paths_{};
  u64 round_id_ = 0;
  std::size_t cursor_ = 0, end_ = 0;  // of its probes: path times sizes
  i64 deadline_ns_ = kNever, timeout_ns_ = 0;
  i64 raise_ns_ = kNever, raise_interval_ns_ = kRaiseNsMin;
  i64 fall_ns_ = 0, fall_interval_ns_ = 0;
  int tries_ = 0;
  u16 path_count_;
  bool raises_ = false;
};

}  // namespace weft::core
