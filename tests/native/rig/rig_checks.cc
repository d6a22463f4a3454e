// Checks the invariants of docs/PROTOCOL.md from outside the core: the cheap ones after each step, all of them at the
// end. Each violation names the number of its invariant.
#include <algorithm>
#include <cstring>

#include "tests/native/rig/rig_state.h"

namespace weft::sim {
namespace {

// P-7: limit of the protocol state of one stack with a few flows (window, bitmaps, eager slots), with a margin.
constexpr i64 kStorageBytesMax = 16 << 20;

}  // namespace

void Rig::violate(const char* invariant, const std::string& what) {
  if (!report_.violation.empty()) return;
  report_.violation = std::string(invariant) + ": " + what + " (seed " + std::to_string(schedule_.seed) + ", at " +
                      std::to_string(now_ns_) + " ns)";
}

void Rig::mix(u64 value) noexcept {
  report_.fingerprint = (report_.fingerprint ^ value) * 0x100000001B3u;
  report_.fingerprint ^= report_.fingerprint >> 29;
}

// Checks P-4 for a burst: a segment is sent again only after it was declared lost, and over another path if one has
// room.
void Rig::check_burst(int end) {
  const core::TxBurst& burst = *burst_;
  Side& side = *sides_[end];
  if (burst.count == 0 || burst.path >= schedule_.paths)
    return violate("P-6", "a stack sent a burst without datagrams or on an unknown path");
  check_early_bytes(end);
  for (std::size_t i = 0; i < burst.count; ++i) {
    wire::Packet packet;
    if (wire::decode(burst.header(i), burst.header_bytes, burst.payload[i].bytes, &packet) != wire::Verdict::ok) {
      return violate("wire", "a stack sent a packet that its own decoder refuses");
    }
    if (packet.common.type != wire::Type::data) {
      if (burst.header_bytes > wire::kControlBytesMax) violate("wire", "a control packet is longer than allowed");
      continue;
    }
    if (burst.header_bytes + burst.payload[i].bytes > schedule_.segment_bytes)
      violate("wire", "a segment is longer than segment_bytes");
    const bool known = packet.data.message < side.owned.size();
    if (!side.failed && (!known || side.owned[packet.data.message]->send_finished)) {
      return violate("P-3", "bytes were sent from a buffer after its send had completed");
    }
    check_window(end, packet.common.flow);
    if (packet.data.fragment_offset != 0) continue;  // only the first fragment of a segment is checked
    const u64 key = u64{packet.common.flow} << 40 | packet.data.seq;
    const auto [place, fresh] = side.last_path.try_emplace(key, burst.path);
    if (fresh) continue;
    const core::PathSet& paths = side.stack.peer(side.peer)->paths();
    if (place->second == burst.path) {
      for (std::size_t other = 0; other < paths.count(); ++other) {
        const core::PathState& state = paths.path(other);
        const bool better = state.usable && other != burst.path &&
                            state.inflight_bytes + 4 * schedule_.segment_bytes < schedule_.port_buffer_bytes;
        if (better && paths.path(burst.path).usable)
          return violate("P-4", "a segment was resent on the path that lost it, although another was usable");
      }
    }
    place->second = burst.path;
  }
}

// A stranger that has answered nothing gets no data, and at most three times the bytes that came from it.
void Rig::check_early_bytes(int end) {
  Side& side = *sides_[end];
  if (end != 1 || schedule_.open_bytes < 0 || !side.stack.peer(side.peer)->paths().gate().is_closed()) return;
  report_.early_bytes += static_cast<i64>(burst_->total_bytes());
  if (report_.early_bytes > 3 * (schedule_.open_bytes + side.arrived_bytes))
    violate("bound", "a stranger that has not answered got more than three times its own bytes");
}

// Called for each sent segment. The policy's window limits every flow, whatever its message sizes; one segment is
// always allowed.
void Rig::check_window(int end, u32 remote_flow) {
  Side& side = *sides_[end];
  const std::vector<u32>& there = sides_[1 - end]->flows;
  const auto stripe = static_cast<std::size_t>(std::find(there.begin(), there.end(), remote_flow) - there.begin());
  if (stripe >= side.flows.size()) return violate("wire", "a segment was sent to a flow that the peer does not have");
  core::FlowSender& sender = side.stack.flow(side.flows[stripe])->tx;
  const i64 window_bytes = sender.window().window_bytes();
  if (sender.inflight_bytes() <= std::max<i64>(window_bytes, schedule_.segment_bytes)) return;
  violate("window", std::to_string(sender.inflight_bytes()) + " bytes in flight, more than the window of " +
                        std::to_string(window_bytes));
}

void Rig::check_step() {
  for (int end = 0; end < 2; ++end) {
    Side& side = *sides_[end];
    const auto storage = static_cast<i64>(side.stack.storage_bytes());
    if (storage > report_.storage_bytes_max) report_.storage_bytes_max = storage;
    for (const u32 index : side.flows) {
      core::Flow* flow = side.stack.flow(index);
      const core::FlowCells& sent = flow->tx.counters();
      if (sent.segments_resent > sent.segments_lost + sent.segments_held)
        violate("P-4", "more segments resent than declared lost");
    }
    const core::PathSet& paths = side.stack.peer(side.peer)->paths();
    for (std::size_t path = 0; path < paths.count(); ++path) {
      const i64 inflight_bytes = paths.path(path).inflight_bytes;
      if (inflight_bytes < 0) violate("P-7", "the count of bytes in flight on a path is negative");
      // Even a port that is smaller than one segment accepts one segment.
      if (inflight_bytes > schedule_.port_buffer_bytes && inflight_bytes > schedule_.segment_bytes) {
        violate("P-7", "more bytes in flight on a path than the receiving port can buffer");
      }
    }
  }
  if (report_.storage_bytes_max > kStorageBytesMax) violate("P-7", "a stack holds more protocol state than its limit");
}

bool Rig::settled() const noexcept {
  for (int end = 0; end < 2; ++end) {
    if (dead(end)) continue;
    const Side& side = *sides_[end];
    if (side.flows_closed < side.flows.size()) return false;
    if (schedule_.dies_at_ns >= 0) continue;
    // P-5: a path that works again must become usable by itself within 20 * rto_ns_max. The time counts from when the
    // path works again or from the close, because the path's last timeout may have come just before that.
    i64 healed_ns = closed_ns_;
    for (const PathOutage& outage : schedule_.outages) {
      if (outage.from_ns <= now_ns_ && outage.until_ns > healed_ns) healed_ns = outage.until_ns;
    }
    for (const SizeLimit& limit : schedule_.limits) {
      if (limit.from_ns <= now_ns_ && limit.until_ns > healed_ns) healed_ns = limit.until_ns;
    }
    const core::PathSet& paths = const_cast<Side&>(side).stack.peer(side.peer)->paths();
    for (std::size_t path = 0; path < paths.count(); ++path) {
      if (!paths.path(path).usable && now_ns_ < healed_ns + 20 * schedule_.rto_ns_max) return false;
    }
  }
  return true;
}

void Rig::check_end() {
  if (!report_.violation.empty()) return;
  if (!finished()) {
    report_.hung = true;
    return violate("P-2", std::to_string(outstanding_) + " requests are outstanding and " + std::to_string(unposted_) +
                              " are not posted at the end");
  }
  for (int end = 0; end < 2; ++end) {
    for (const auto& transfer : sides_[end]->owned) {
      for (const u8 byte : transfer->receive_buffer) {
        if (byte == kReused || !transfer->receive_finished) continue;
        return violate("P-1", "a receive buffer was written after its request had ended");
      }
    }
    if (!dead(end) && sides_[end]->flows_closed < sides_[end]->flows.size()) violate("P-2", "a flow did not close");
    if (dead(end) || schedule_.dies_at_ns >= 0) continue;
    const core::PathSet& paths = sides_[end]->stack.peer(sides_[end]->peer)->paths();
    for (std::size_t path = 0; path < paths.count(); ++path) {
      if (!paths.path(path).usable) violate("P-5", "path " + std::to_string(path) + " did not become usable again");
    }
  }
  const bool excused = schedule_.dies_at_ns >= 0 || schedule_.close_at_ns >= 0 || schedule_.send_too_long;
  if (report_.failed != 0 && !excused) {
    violate("P-2", "requests failed although both ends were alive and a path worked; statuses of end 0 and end 1: " +
                       std::string(status_name(sides_[0]->first_failure)) + ", " +
                       status_name(sides_[1]->first_failure));
  }
}

RunReport Rig::report() {
  report_.ended_ns = now_ns_;
  report_.link = link_.counters();
  report_.path_bytes.clear();
  for (int end = 0; end < 2; ++end) {
    Side& side = *sides_[end];
    report_.stack[end] = telemetry::values(side.stack.counters());
    core::FlowCounters total;
    for (const u32 index : side.flows) merge(side.stack.flow(index)->counters(), &total);
    report_.counters[end] = total;
    report_.segment_bytes_last[end] = side.stack.peer(side.peer)->paths().segment_bytes();
  }
  const core::PathSet& paths = sides_[0]->stack.peer(sides_[0]->peer)->paths();
  for (std::size_t path = 0; path < paths.count(); ++path)
    report_.path_bytes.push_back(paths.counters(path).bytes_sent);
  return report_;
}

}  // namespace weft::sim
