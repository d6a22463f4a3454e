// Writes a stripe's trace record when the stripe ends, with the number of segments that each path carried.
#include "native/engine/trace/engine_trace.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "native/core/stripes.h"

namespace weft::engine {
namespace {

using Kind = core::Event::Kind;

constexpr std::pair<Kind, const char*> kNamedEvents[] = {
    {Kind::path_down, "path_down"},
    {Kind::path_up, "path_up"},
    {Kind::peer_connected, "peer_connected"},
    {Kind::peer_quiet, "peer_quiet"},
    {Kind::peer_dead, "peer_dead"},
    {Kind::flow_failed, "flow_failed"},
    {Kind::flow_stuck, "flow_stuck"},
    {Kind::peer_closed, "peer_closed"},
    {Kind::loss, "loss"},
    {Kind::timeout, "timeout"},
    {Kind::segment_size, "segment_size"},
    {Kind::policy_failed, "policy_failed"},
    {Kind::policy_replaced, "policy_replaced"},
};

constexpr core::Traced traced_kinds() noexcept {
  core::Traced kinds =
      core::traced(Kind::message_posted, Kind::message_started, Kind::segments_sent, Kind::segments_resent,
                   Kind::send_done, Kind::stripe_placed, Kind::message_failed, Kind::peer_released);
  for (const auto& [kind, name] : kNamedEvents) kinds |= core::traced(kind);
  return kinds;
}

}  // namespace

EngineTrace::EngineTrace(std::uint32_t engine, core::Stack* stack, std::shared_ptr<TraceWriter> writer)
    : engine_(engine), stack_(stack), writer_(std::move(writer)), host_drops_text_(writer_->text("host_drops")) {
  for (const auto& [kind, name] : kNamedEvents) kinds_[static_cast<std::size_t>(kind)] = writer_->text(name);
  static_cast<void>(stack_->trace().subscribe(this, traced_kinds()));
}

void EngineTrace::name_flow(std::uint32_t flow, std::uint32_t connection) {
  if (connections_.size() <= flow) connections_.resize(flow + 1, 0);
  connections_[flow] = connection;
}

void EngineTrace::name_peer(std::uint32_t peer, const std::vector<std::string>& addresses) {
  PeerNames names;
  for (const std::string& address : addresses) names.addresses.push_back(writer_->text(address));
  names.segments_written.resize(core::kMaxPaths, 0);
  peers_[peer] = std::move(names);
}

std::uint32_t EngineTrace::address_of(std::uint32_t peer, std::size_t path) const noexcept {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.addresses.empty()) return 0;
  return found->second.addresses[path % found->second.addresses.size()];
}

void EngineTrace::on_event(std::int64_t now_ns, const core::Event& event) noexcept {
  switch (event.kind) {
    case Kind::message_posted:
      return on_posted(now_ns, event);
    case Kind::message_started:
      if (TracedStripe* const stripe = messages_.find(event.flow, event.message, event.receives)) {
        stripe->first_ns = now_ns;
      }
      return;
    case Kind::segments_sent:
    case Kind::segments_resent:
      return on_segments(now_ns, event);
    case Kind::send_done:
    case Kind::stripe_placed:
    case Kind::message_failed:
      return on_end(now_ns, event);
    case Kind::peer_released:
      peers_.erase(event.peer);
      return;
    default:
      return put_event(now_ns, event);
  }
}

void EngineTrace::on_posted(std::int64_t now_ns, const core::Event& event) noexcept {
  TracedStripe* const stripe = messages_.add(event.flow, event.message, event.receives);
  if (stripe != nullptr) stripe->posted_ns = now_ns;  // null: table full, and on_end() counts the stripe as dropped
}

void EngineTrace::on_segments(std::int64_t now_ns, const core::Event& event) noexcept {
  TracedStripe* const stripe = messages_.find(event.flow, event.message, false);
  if (stripe == nullptr) return;
  const auto count = static_cast<std::uint32_t>(event.value);
  stripe->segments += count;
  stripe->by_path[std::min<std::size_t>(event.path, TracedStripe::kPaths - 1)] += count;
  if (event.kind == Kind::segments_resent) {
    stripe->resent += count;
  } else {
    stripe->last_ns = now_ns;
  }
}

void EngineTrace::on_end(std::int64_t now_ns, const core::Event& event) noexcept {
  const bool receives = event.kind == Kind::stripe_placed || event.receives;
  TracedStripe stripe;
  if (!messages_.remove(event.flow, event.message, receives, &stripe)) {
    if (event.kind != Kind::message_failed) writer_->count_dropped();
    return;
  }
  const core::Flow* const flow = stack_->flow(event.flow);
  telemetry::TraceStripe record;
  record.head.id = writer_->next_id();
  record.head.time_ns = now_ns;
  record.message = event.message;
  if (flow != nullptr && event.kind != Kind::message_failed) {
    record.bytes = core::stripe_of(event.message, event.value, flow->config.stripe, flow->config.stripes).bytes();
  }
  record.posted_ns = stripe.posted_ns;
  record.first_ns = stripe.first_ns;
  record.last_ns = receives ? now_ns : stripe.last_ns;
  record.connection = connection_of(event.flow);
  record.segments = stripe.segments;
  record.resent = stripe.resent;
  record.engine = static_cast<std::uint16_t>(engine_);
  record.sends = receives ? 0 : 1;
  record.status = static_cast<std::uint16_t>(event.kind == Kind::message_failed ? event.status : Status::ok);
  static_assert(offsetof(telemetry::TraceStripe, path_others) - offsetof(telemetry::TraceStripe, path_0) ==
                TracedStripe::kPaths - 1);
  auto* const shares = reinterpret_cast<std::uint8_t*>(&record) + offsetof(telemetry::TraceStripe, path_0);
  for (std::size_t i = 0; i < TracedStripe::kPaths && stripe.segments != 0; ++i) {
    shares[i] =
        static_cast<std::uint8_t>((std::uint64_t{255} * stripe.by_path[i] + stripe.segments / 2) / stripe.segments);
  }
  writer_->put(record);
}

bool EngineTrace::may_put_event(std::int64_t now_ns) noexcept {
  if (now_ns - second_ns_ >= 1'000'000'000) {
    second_ns_ = now_ns;
    events_ = 0;
  }
  if (++events_ <= kEventsMax) return true;
  writer_->count_dropped();
  return false;
}

void EngineTrace::put_host_drops(std::int64_t now_ns, std::int64_t host_drops) noexcept {
  const std::int64_t more = host_drops - host_drops_;
  if (more <= 0 || !may_put_event(now_ns)) return;  // what is not written now is part of the next event
  host_drops_ = host_drops;
  telemetry::TraceEvent record;
  record.head.id = writer_->next_id();
  record.head.time_ns = now_ns;
  record.value = static_cast<std::uint64_t>(more);
  record.what = host_drops_text_;
  writer_->put(record);
}

void EngineTrace::put_event(std::int64_t now_ns, const core::Event& event) noexcept {
  if (!may_put_event(now_ns)) return;
  telemetry::TraceEvent record;
  record.head.id = writer_->next_id();
  record.head.time_ns = now_ns;
  record.value = event.value;
  record.what = kinds_[static_cast<std::size_t>(event.kind)];
  const core::Flow* const flow = event.flow == core::kNone ? nullptr : stack_->flow(event.flow);
  const std::uint32_t peer = event.peer != core::kNone || flow == nullptr ? event.peer : flow->config.peer;
  record.peer = address_of(peer, event.path);
  record.connection = event.flow == core::kNone ? 0 : connection_of(event.flow);
  record.path = event.path;
  record.status = static_cast<std::uint16_t>(event.status);
  writer_->put(record);
}

void EngineTrace::put_path(std::int64_t now_ns, std::uint32_t peer, const core::PathSet& paths,
                           std::size_t path) noexcept {
  const telemetry::PathCounters counters = paths.counters(path);
  telemetry::TracePath record;
  record.head.id = writer_->next_id();
  record.head.time_ns = now_ns;
  record.bytes_sent = static_cast<std::uint64_t>(counters.bytes_sent);
  record.segments_sent = static_cast<std::uint64_t>(counters.segments_sent);
  record.segments_lost = static_cast<std::uint64_t>(counters.segments_lost);
  record.rtt_ns = counters.rtt_ns;
  record.peer = address_of(peer, path);
  record.path = static_cast<std::uint16_t>(path);
  record.engine = static_cast<std::uint16_t>(engine_);
  record.usable = counters.usable != 0 ? 1 : 0;
  writer_->put(record);
}

void EngineTrace::snapshot(std::int64_t now_ns, std::int64_t host_drops) noexcept {
  put_host_drops(now_ns, host_drops);
  if (now_ns - snapshot_ns_ < kSnapshotNs) return;
  snapshot_ns_ = now_ns;
  for (auto& [index, names] : peers_) {
    const core::Peer* const peer = stack_->peer(index);
    if (peer == nullptr) continue;
    const core::PathSet& paths = peer->paths();
    for (std::size_t i = 0; i < paths.count() && i < names.segments_written.size(); ++i) {
      const std::int64_t segments = paths.counters(i).segments_sent;
      if (std::exchange(names.segments_written[i], segments) != segments) put_path(now_ns, index, paths, i);
    }
  }
}

}  // namespace weft::engine
