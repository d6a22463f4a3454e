// Runs the rounds of the datagram size search. A round sends probes of all sizes at once: trying one size after the
// other would take one round trip per size, and while the size is too large, no segment gets through.
#include "native/core/size_search.h"

#include <algorithm>

namespace weft::core {

SizeSearch::SizeSearch(u16 agreed_bytes, u16 path_count)
    : paths_(std::make_unique<PathSize[]>(path_count)), path_count_(path_count) {
  const std::size_t least = std::max<std::size_t>(
      kBytesMin, wire::kDataBytes + wire::segment_payload_bytes(agreed_bytes) / (kMaxBurstSegments - 1) + 8);
  rungs_[rung_count_++] = agreed_bytes;
  for (const u16 bytes : kLadder) {
    if (bytes < agreed_bytes && bytes >= least) rungs_[rung_count_++] = bytes;
  }
}

void SizeSearch::on_proof(i64 now_ns, u8 path) noexcept {
  paths_[path].carried_ns = now_ns;
  paths_[path].suspects = paths_[path].suspect_bytes = 0;
}

bool SizeSearch::on_acked(i64 now_ns, u8 path, u16 payload_bytes) noexcept {
  const bool proves = payload_bytes >= wire::segment_payload_bytes(segment_bytes());
  const PathSize& state = paths_[path];
  if (proves || (state.suspects != 0 && payload_bytes >= state.suspect_bytes)) on_proof(now_ns, path);
  return proves;
}

bool SizeSearch::on_lost(u8 path, i64 sent_ns, u16 payload_bytes, i64 segments) noexcept {
  PathSize& state = paths_[path];
  if (is_small(payload_bytes) || sent_ns <= state.carried_ns) return false;
  state.suspect_bytes = std::max(state.suspect_bytes, payload_bytes);
  state.suspects = static_cast<u16>(std::min<i64>(state.suspects + segments, kSuspectsMax));
  return state.suspects == kSuspectsMax;
}

void SizeSearch::on_silent(u8 path) noexcept {
  paths_[path].small_ns = -1;
  paths_[path].suspects = paths_[path].suspect_bytes = 0;
}

void SizeSearch::start(i64 now_ns, u64 random, bool raises, i64 timeout_ns) noexcept {
  round_id_ = (random & ~u64{kRungsMax - 1}) | (u64{1} << 63);  // the top bit is set, so the id is not 0
  raises_ = raises;
  round_paths_.fill(0);
  for (std::size_t i = 0; i < path_count_; ++i) paths_[i].carried_bytes = 0;
  cursor_ = 0;
  end_ = path_count_ * (end_rung() - first_rung());
  timeout_ns_ = timeout_ns;
  deadline_ns_ = now_ns + timeout_ns;
  tries_ = 1;
}

void SizeSearch::add_path(std::size_t path) noexcept { round_paths_[path / 64] |= u64{1} << (path % 64); }

bool SizeSearch::poll_probe(u8* path, u64* probe_id, u16* bytes) noexcept {
  if (!in_round()) return false;
  const std::size_t sizes = end_rung() - first_rung();
  for (; cursor_ != end_; ++cursor_) {
    const std::size_t index = cursor_ / sizes, rung = first_rung() + cursor_ % sizes;
    if (!in_round(index) || rungs_[rung] <= paths_[index].carried_bytes) continue;
    *path = static_cast<u8>(index);
    *probe_id = round_id_ | rung;
    *bytes = rungs_[rung];
    ++cursor_;
    return true;
  }
  return false;
}

// Handles a probe's answer. When the size is being lowered, the round ends soon after the first answer, because the
// other answers follow closely.
bool SizeSearch::on_reply(i64 now_ns, u8 path, u64 probe_id, i64 settle_ns) noexcept {
  const u64 rung = probe_id & (kRungsMax - 1);
  if (!in_round() || (probe_id ^ round_id_) >= kRungsMax || rung >= rung_count_ || !in_round(path)) return false;
  paths_[path].carried_bytes = std::max(paths_[path].carried_bytes, rungs_[rung]);
  if (!raises_) deadline_ns_ = std::min(deadline_ns_, now_ns + settle_ns);
  return true;
}

bool SizeSearch::again(i64 now_ns) noexcept {
  const u16 most = rungs_[first_rung()];
  bool all = true, any = false;
  for (std::size_t i = 0; i < path_count_; ++i) {
    const bool carries = in_round(i) && paths_[i].carried_bytes == most;
    all = all && (carries || !in_round(i));
    any = any || carries;
  }
  if ((raises_ ? all : any) || tries_ == kTriesMax) return false;
  ++tries_;
  cursor_ = 0;
  deadline_ns_ = now_ns + timeout_ns_;
  return true;
}

u16 SizeSearch::take_found() noexcept {
  std::array<std::size_t, kRungsMax> carry{};  // number of paths that carry each size
  for (std::size_t i = 0; i < path_count_; ++i) {
    for (std::size_t rung = 0; in_round(i) && rung < rung_count_; ++rung) {
      carry[rung] += paths_[i].carried_bytes >= rungs_[rung] ? 1 : 0;
    }
  }
  round_id_ = 0;
  // A larger size needs half of all paths. Silent paths count as not carrying it, because they may become usable again.
  const std::size_t needed = raises_ ? (path_count_ + 1u) / 2 : 1;
  for (std::size_t rung = first_rung(); rung < end_rung(); ++rung) {
    if (carry[rung] >= needed) return rungs_[rung];
  }
  return 0;
}

bool SizeSearch::set(i64 now_ns, u16 bytes) noexcept {
  const std::size_t before = in_force_;
  for (std::size_t i = 0; i < rung_count_; ++i) in_force_ = rungs_[i] == bytes ? i : in_force_;
  fall_ns_ = fall_interval_ns_ = 0;
  if (in_force_ == before) return false;
  raise_interval_ns_ = kRaiseNsMin;
  raise_ns_ = in_force_ == 0 ? kNever : now_ns + raise_interval_ns_;
  return true;
}

// Schedules the next round after a round that found no size. The time between rounds doubles up to a limit.
void SizeSearch::postpone(i64 now_ns, i64 fall_ns_max) noexcept {
  if (raises_) {
    raise_interval_ns_ = std::min(2 * raise_interval_ns_, kRaiseNsMax);
    raise_ns_ = now_ns + raise_interval_ns_;
    return;
  }
  fall_interval_ns_ = std::clamp(2 * fall_interval_ns_, timeout_ns_, fall_ns_max);
  fall_ns_ = now_ns + fall_interval_ns_;
}

i64 SizeSearch::poll_timeout(bool any_usable, bool enough_to_raise, bool any_small) const noexcept {
  if (in_round()) return cursor_ != end_ ? 0 : deadline_ns_;
  if (any_usable) return enough_to_raise ? raise_ns_ : kNever;
  return any_small ? fall_ns_ : kNever;
}

}  // namespace weft::core
