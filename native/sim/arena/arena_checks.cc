// Compares an independent count of the bytes on the wire with the core's count and the policy's window. Also makes the
// report: samples during the run and totals at the end.
#include <algorithm>
#include <cmath>

#include "native/sim/arena/arena_state.h"

namespace weft::sim {
namespace {

i64 percentile(std::vector<i64> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::llround(share * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end());
  return values[rank];
}

i64 core_inflight_bytes(const core::PathSet& paths) noexcept {
  i64 bytes = 0;
  for (std::size_t path = 0; path < paths.count(); ++path) bytes += paths.path(path).inflight_bytes;
  return bytes;
}

}  // namespace

void Arena::violate(const char* rule, const std::string& what) {
  ++report_.violations;
  if (!report_.violation.empty()) return;
  report_.violation = std::string(rule) + ": " + what + " (seed " + std::to_string(plan_.seed) + ", at " +
                      std::to_string(now_ns()) + " ns)";
}

void Arena::mix(u64 value) noexcept {
  report_.fingerprint = (report_.fingerprint ^ value) * 0x100000001B3u;
  report_.fingerprint ^= report_.fingerprint >> 29;
}

void Arena::check_burst(u32 host, const core::TxBurst& burst) {
  Host& here = *hosts_[host];
  if (burst.count == 0 || burst.path >= plan_.paths.size())
    return violate("wire", "a stack sent a burst without datagrams or on an unknown path");
  if (!here.sends || burst.header_bytes != wire::kDataBytes) return;
  const std::vector<u32>& there = hosts_[here.peers[burst.peer]]->flows;
  Flow* flow = nullptr;
  bool fresh = false;
  for (std::size_t i = 0; i < burst.count; ++i) {
    wire::Packet packet;
    if (wire::decode(burst.header(i), burst.header_bytes, burst.payload[i].bytes, &packet) != wire::Verdict::ok) {
      return violate("wire", "a stack sent a packet that its own decoder refuses");
    }
    if (packet.common.type != wire::Type::data) return;
    flow = flows_[there[packet.common.flow]].get();
    if (burst.header_bytes + burst.payload[i].bytes > plan_.segment_bytes)
      violate("wire", "a segment is longer than segment_bytes");
    switch (flow->ledger.on_sent(packet.data.seq, burst.payload[i].bytes)) {
      case WireLedger::Sent::first:
        fresh = true;
        break;
      case WireLedger::Sent::copy:
        break;
      case WireLedger::Sent::needless:
        violate("P-4", "a segment was resent although it was acknowledged");
        break;
      case WireLedger::Sent::foreign:
        violate("wire", "a segment has a sequence number out of order");
        break;
    }
  }
  core::Flow& sender = *here.stack.flow(flow->at_sender);
  const i64 window_bytes = sender.tx.window().window_bytes();
  const i64 segment_bytes = plan_.segment_bytes;
  if (!fresh) {
    // A retransmission beyond the window is only counted and is no violation: the bytes in flight are those of all
    // flows to the peer, and may exceed this flow's window.
    if (core_inflight_bytes(sender.peer->paths()) > window_bytes) flow->copies_beyond_window += burst.count;
  } else if (!sender.tx.has_lost() && flow->ledger.unacked_bytes() > std::max(window_bytes, segment_bytes)) {
    violate("window", "flow " + std::to_string(flow->number) + " has " + std::to_string(flow->ledger.unacked_bytes()) +
                          " bytes on the wire, more than its window of " + std::to_string(window_bytes));
  }
}

void Arena::check_ack(u32 host, const Packet& packet) {
  wire::Packet decoded;
  if (wire::decode(packet.header, packet.header_bytes, packet.payload_bytes, &decoded) != wire::Verdict::ok) {
    return violate("wire", "a datagram was changed in transit");
  }
  if (decoded.common.type != wire::Type::ack) return;
  Flow& flow = *flows_[hosts_[host]->flows[decoded.common.flow]];
  if (!flow.ledger.on_ack(decoded.ack)) violate("wire", "a receiver acknowledged a segment that was never sent");
}

// Compares both counts of bytes in flight. Called after each step of a host.
void Arena::check_host(u32 host) {
  Host& here = *hosts_[host];
  report_.storage_bytes_max = std::max(report_.storage_bytes_max, static_cast<i64>(here.stack.storage_bytes()));
  for (const u32 index : here.pairs) {
    const Pair& pair = *pairs_[index];
    i64 by_wire = 0, verdicts_open = 0;
    bool has_lost = false;
    for (const u32 number : pair.flows) {
      const Flow& flow = *flows_[number];
      if (flow.stopped) continue;
      core::FlowSender& sender = here.stack.flow(flow.at_sender)->tx;
      const core::FlowCells& counters = sender.counters();
      by_wire += flow.ledger.unacked_bytes();
      has_lost = has_lost || sender.has_lost();
      verdicts_open += counters.segments_lost - counters.segments_resent;
      if (counters.segments_resent != flow.ledger.copies())
        violate("P-4", "the wire and the core count different numbers of resent segments");
      if (counters.segments_resent > counters.segments_lost) violate("P-4", "more segments resent than declared lost");
    }
    const i64 by_core = core_inflight_bytes(here.stack.peer(pair.at_sender)->paths());
    const i64 lost_bytes = has_lost ? verdicts_open * (plan_.segment_bytes - i64{wire::kDataBytes}) : 0;
    if (by_wire < by_core || by_wire - by_core > lost_bytes) {
      violate("ledger", "the core counts " + std::to_string(by_core) +
                            " bytes in flight, but the packets on the wire make " + std::to_string(by_wire) +
                            ", and at most " + std::to_string(lost_bytes) + " of these are declared lost");
    }
  }
}

void Arena::sample() {
  Trace& trace = report_.trace;
  trace.at_ns.push_back(now_ns());
  for (const auto& flow : flows_) {
    core::Flow& sender = *hosts_[flow->plan.from]->stack.flow(flow->at_sender);
    core::Flow& receiver = *hosts_[flow->plan.to]->stack.flow(flow->at_receiver);
    const core::Pacer& pacer = sender.tx.window().pacer();
    const i64 burst_bytes = pacer.burst_bytes_max();
    const bool paced = burst_bytes != std::numeric_limits<i64>::max();
    trace.window_bytes.push_back(sender.tx.window().window_bytes());
    trace.inflight_bytes.push_back(flow->stopped ? 0 : flow->ledger.unacked_bytes());
    trace.pacing_bytes_per_s.push_back(paced ? burst_bytes * (1'000'000'000 / core::Pacer::kBurstNs) : 0);
    trace.delivered_bytes.push_back(receiver.rx.counters().bytes_received);
  }
  for (u32 path = 0; path < plan_.paths.size(); ++path) {
    trace.queue_bytes.push_back(links_[forward_ + path].queue_bytes(now_ns_));
    trace.path_bytes.push_back(links_[forward_ + path].totals().bytes_delivered);
  }
}

void Arena::begin_measuring() {
  for (const auto& flow : flows_) {
    flow->measured_from_ns = now_ns_;
    flow->measured_from_bytes = hosts_[flow->plan.to]->stack.flow(flow->at_receiver)->rx.counters().bytes_received;
  }
}

ArenaReport Arena::report() {
  ArenaReport out = report_;
  out.ended_ns = now_ns();
  std::vector<i64> all_ns;
  double sum = 0, sum_of_squares = 0;
  for (const auto& flow : flows_) {
    core::Flow& sender = *hosts_[flow->plan.from]->stack.flow(flow->at_sender);
    core::Flow& receiver = *hosts_[flow->plan.to]->stack.flow(flow->at_receiver);
    FlowReport one;
    one.sent = sender.counters();
    one.delivered_bytes = receiver.rx.counters().bytes_received;
    one.segments_duplicate = receiver.rx.counters().segments_duplicate;
    one.messages = static_cast<i64>(flow->received);
    one.finished_ns = flow->finished_ns < 0 ? -1 : flow->finished_ns - kBeginNs;
    one.copies_max = flow->ledger.copies_max();
    one.copies_beyond_window = flow->copies_beyond_window;
    const i64 from_ns = std::max(kBeginNs + flow->plan.start_ns, flow->measured_from_ns);
    const i64 stop_ns = flow->plan.stop_ns < 0 ? now_ns_ : kBeginNs + flow->plan.stop_ns;
    const i64 until_ns = std::min(flow->finished_ns < 0 ? now_ns_ : flow->finished_ns, stop_ns);
    if (until_ns > from_ns) {
      one.goodput_bytes_per_s = static_cast<double>(one.delivered_bytes - flow->measured_from_bytes) * 1e9 /
                                static_cast<double>(until_ns - from_ns);
    }
    one.message_ns_p50 = percentile(flow->times_ns, 0.5);
    one.message_ns_p99 = percentile(flow->times_ns, 0.99);
    all_ns.insert(all_ns.end(), flow->times_ns.begin(), flow->times_ns.end());
    sum += one.goodput_bytes_per_s;
    sum_of_squares += one.goodput_bytes_per_s * one.goodput_bytes_per_s;
    out.flows.push_back(one);
  }
  out.goodput_bytes_per_s = sum;
  out.jain = sum_of_squares > 0 ? sum * sum / (static_cast<double>(flows_.size()) * sum_of_squares) : 0;
  out.message_ns_p50 = percentile(all_ns, 0.5);
  out.message_ns_p99 = percentile(all_ns, 0.99);
  for (u32 path = 0; path < plan_.paths.size(); ++path) {
    const Link& forward = links_[forward_ + path];
    out.paths.push_back({forward.totals(), links_[back_ + path].totals(), forward.queue_seen().percentile(0.99)});
  }
  for (u32 host = 0; is_there(plan_.receiver_port) && host < hosts_.size(); ++host) {
    const Link& port = links_[receiver_ports_ + host];
    if (!hosts_[host]->sends) out.ports.push_back({host, port.totals(), port.queue_seen().percentile(0.99)});
  }
  return out;
}

}  // namespace weft::sim
