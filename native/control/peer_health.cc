// Each tick adds the time since the last tick to the timers of those failures that the facts support, and resets the
// others. At most two tick lengths are added, because time in which this process did not run is not the peer's fault.
#include "native/control/peer_health.h"

#include <algorithm>

namespace weft::control {

void PeerHealth::begin(std::int64_t now_ns) noexcept {
  if (!begun()) tick_ns_ = now_ns;
}

Status PeerHealth::on_tick(std::int64_t now_ns, const HealthFacts& facts) noexcept {
  const std::int64_t passed_ns = std::clamp<std::int64_t>(now_ns - tick_ns_, 0, 2 * limits_.tick_ns);
  // Data counts as recent if it arrived since the last tick, whatever its age: after a pause of this process, all data
  // is old.
  const bool data = facts.data_ns >= 0 && facts.data_ns >= tick_ns_;
  tick_ns_ = now_ns;
  const auto recent = [&](std::int64_t at_ns, std::int64_t within_ns) {
    return at_ns >= 0 && now_ns - at_ns <= within_ns;
  };
  // A recent pong says whether the peer's engines run. Without one, recent data proves that they do.
  const bool runs = recent(facts.pong_ns, kRecentTicks * limits_.tick_ns) ? facts.engines_turn : data;
  const bool host = data || recent(facts.pong_ns, kKernelRecentNs) || recent(facts.kernel_ns, kKernelRecentNs);

  nothing_ns_ = host ? 0 : nothing_ns_ + passed_ns;
  ended_ns_ = facts.ended && !host ? ended_ns_ + std::min(passed_ns, kEndedCreditNs) : 0;
  stalled_ns_ = host && !data && !runs ? stalled_ns_ + passed_ns : 0;
  // Only time in which the peer process ran counts. The examination of a peer begins after five sixteenths of the
  // silence limit, so eleven sixteenths remain.
  if (!facts.data_quiet) silent_ns_ = 0;
  if (facts.data_quiet && runs) silent_ns_ += passed_ns;

  condition_ = !host              ? Condition::unreachable
               : stalled_ns_ != 0 ? Condition::stalled
               : facts.data_quiet ? Condition::quiet
                                  : Condition::well;
  const std::int64_t confirm_ns = facts.refused ? kConfirmNs : std::min(limits_.dead_ns, kEndedNsMax);
  if (facts.ended && ended_ns_ >= confirm_ns) return Status::peer_dead;
  if (nothing_ns_ >= limits_.dead_ns) return Status::peer_dead;
  if (silent_ns_ >= limits_.silence_ns / 16 * 11) return Status::peer_silent;
  if (limits_.stall_ns != 0 && stalled_ns_ >= limits_.stall_ns) return Status::peer_stalled;
  return Status::ok;
}

}  // namespace weft::control
