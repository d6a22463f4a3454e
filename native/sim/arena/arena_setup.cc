// Builds links, hosts, peers and flows from a plan. Each gets its own seed.
#include <algorithm>

#include "native/sim/arena/arena_state.h"

namespace weft::sim {
namespace {

u64 seed_of(const ArenaPlan& plan, u64 kind, u64 index) noexcept {
  return core::Random(plan.seed * 0x10001 + kind * 0x1000003 + index).next();
}

bool is_sound(const LinkConfig& link) noexcept {
  return link.bytes_per_s >= 0 && link.delay_ns >= 0 && link.queue_bytes_max >= 0 && link.mark_from_bytes >= 0 &&
         link.mark_full_bytes >= link.mark_from_bytes && link.jitter_ns >= 0 && link.reorder_ns_max >= 0 &&
         link.loss >= 0 && link.loss <= 1 && link.reorder >= 0 && link.reorder <= 1;
}

constexpr u32 kHostsMax = 4096;
constexpr u32 kAheadMax = 500;  // less than the 1,024 messages that a receive queue holds

}  // namespace

std::string Arena::complaint(const ArenaPlan& plan) {
  if (plan.paths.empty() || plan.paths.size() > core::kMaxPaths) return "1 to 256 paths";
  if (plan.flows.empty()) return "at least one flow";
  if (plan.segment_bytes < 128) return "segment_bytes of 128 or more";
  if (plan.limit_ns <= 0 || plan.trace_ns < 0 || plan.measure_from_ns < 0)
    return "limit_ns above 0, and trace_ns and measure_from_ns of 0 or more";
  if (plan.window_bytes_max <= 0 || plan.port_buffer_bytes <= 0)
    return "window_bytes_max and port_buffer_bytes above 0";
  if (plan.rto_ns_min <= 0 || plan.rto_ns_max < plan.rto_ns_min) return "0 < rto_ns_min <= rto_ns_max";
  if (!is_sound(plan.sender_port) || !is_sound(plan.receiver_port) ||
      !std::all_of(plan.paths.begin(), plan.paths.end(), is_sound) || plan.ack_loss < 0 || plan.ack_loss > 1) {
    return "links and ack_loss without negative numbers, probabilities up to 1, and mark_full_bytes of at least "
           "mark_from_bytes";
  }
  std::vector<u8> sends(kHostsMax), receives(kHostsMax);
  for (const FlowPlan& flow : plan.flows) {
    if (flow.from >= kHostsMax || flow.to >= kHostsMax) return "hosts of flows below 4096";
    if (flow.ahead == 0 || flow.ahead > kAheadMax) return "1 to 500 messages of a flow posted at a time (ahead)";
    if (flow.message_bytes > core::kMessageBytesMax || flow.start_ns < 0)
      return "flows with message_bytes up to 2^40 and start_ns of 0 or more";
    sends[flow.from] = receives[flow.to] = 1;
  }
  // A recording has 8 bits for the number of the host that made a decision.
  const auto beyond = [](const FlowPlan& flow) { return std::max(flow.from, flow.to) > 0xFF; };
  if (plan.recording_bytes_max != 0 && std::any_of(plan.flows.begin(), plan.flows.end(), beyond)) {
    return "hosts below 256 if decisions are recorded";
  }
  for (u32 host = 0; host < kHostsMax; ++host) {
    if (sends[host] != 0 && receives[host] != 0) return "flows in which no host both sends (from) and receives (to)";
  }
  for (const PathChange& change : plan.changes) {
    if (change.path >= plan.paths.size() || change.at_ns < 0 || change.loss > 1)
      return "changes of paths that exist, with at_ns of 0 or more and a loss up to 1";
  }
  return "";
}

Arena::Arena(const ArenaPlan& plan) : plan_(plan), burst_(std::make_unique<core::TxBurst>()) {
  make_hosts();
  make_links();
  if (plan_.recording_bytes_max != 0) record();
  const auto hosts = static_cast<u32>(hosts_.size());
  const auto flows = static_cast<u32>(plan_.flows.size());
  links_at_ = hosts;
  starts_at_ = links_at_ + static_cast<u32>(links_.size());
  stops_at_ = starts_at_ + flows;
  changes_at_ = stops_at_ + flows;
  sampler_ = changes_at_ + static_cast<u32>(plan_.changes.size());
  measurer_ = sampler_ + 1;
  agenda_.reserve(measurer_ + 1, 0);
  touched_.reserve(hosts);
  for (u32 i = 0; i < flows; ++i) {
    make_flow(i);
    agenda_.set(kBeginNs + plan_.flows[i].start_ns, starts_at_ + i);
    if (plan_.flows[i].stop_ns >= 0) agenda_.set(kBeginNs + plan_.flows[i].stop_ns, stops_at_ + i);
  }
  for (u32 i = 0; i < plan_.changes.size(); ++i) agenda_.set(kBeginNs + plan_.changes[i].at_ns, changes_at_ + i);
  if (plan_.trace_ns > 0) agenda_.set(kBeginNs, sampler_);
  agenda_.set(kBeginNs + plan_.measure_from_ns, measurer_);
  for (u32 host = 0; host < hosts; ++host) agenda_.set(kBeginNs, host);
}

// Returns the headers of packets in flight, because the pool frees only returned blocks.
Arena::~Arena() {
  Packet packet;
  for (Link& link : links_) {
    while (link.discard(&packet)) headers_.give(packet);
  }
}

void Arena::record() {
  const auto* magic = reinterpret_cast<const std::byte*>(core::kRecordingMagic);
  report_.recording.assign(magic, magic + sizeof core::kRecordingMagic);
  for (u32 host = 0; host < hosts_.size(); ++host) {
    recorders_.push_back(
        std::make_unique<core::DecisionBuffer>(&report_.recording, plan_.recording_bytes_max, host << 24));
    static_cast<void>(hosts_[host]->stack.trace().subscribe(recorders_.back().get(), core::kTraceDecisions));
  }
}

core::StackConfig Arena::stack_config(u32 host) const {
  core::StackConfig config;
  config.seed = seed_of(plan_, 1, host);
  config.window_bytes_max = plan_.window_bytes_max;
  config.rto_ns_min = plan_.rto_ns_min;
  config.rto_ns_max = plan_.rto_ns_max;
  config.link_bytes_per_s = plan_.link_bytes_per_s;
  config.place_payload = false;
  config.window = plan_.window;
  config.path = plan_.path;
  config.loss = plan_.loss;
  config.credit = plan_.credit;
  return config;
}

void Arena::make_hosts() {
  u32 hosts = 0;
  for (const FlowPlan& flow : plan_.flows) hosts = std::max({hosts, flow.from + 1, flow.to + 1});
  for (u32 host = 0; host < hosts; ++host) hosts_.push_back(std::make_unique<Host>(stack_config(host)));
  for (const FlowPlan& flow : plan_.flows) hosts_[flow.from]->sends = true;
}

// Creates all links. A port that a host does not have is still in the table, unused, so that a link's index can be
// computed.
void Arena::make_links() {
  const auto hosts = static_cast<u32>(hosts_.size());
  const auto paths = static_cast<u32>(plan_.paths.size());
  receiver_ports_ = hosts;
  forward_ = 2 * hosts;
  back_ = forward_ + paths;
  for (u32 i = 0; i < hosts; ++i) links_.emplace_back(seed_of(plan_, 2, i), plan_.sender_port);
  for (u32 i = 0; i < hosts; ++i) links_.emplace_back(seed_of(plan_, 3, i), plan_.receiver_port);
  for (u32 i = 0; i < paths; ++i) links_.emplace_back(seed_of(plan_, 4, i), plan_.paths[i]);
  for (u32 i = 0; i < paths; ++i) {
    LinkConfig back;
    back.delay_ns = plan_.paths[i].delay_ns;
    back.loss = plan_.ack_loss;
    links_.emplace_back(seed_of(plan_, 5, i), back);
  }
}

Arena::Pair& Arena::pair_of(u32 from, u32 to) {
  for (const u32 index : hosts_[from]->pairs) {
    if (pairs_[index]->to == to) return *pairs_[index];
  }
  hosts_[from]->pairs.push_back(static_cast<u32>(pairs_.size()));
  pairs_.push_back(std::make_unique<Pair>());
  Pair& pair = *pairs_.back();
  pair.from = from;
  pair.to = to;
  core::PeerConfig config;
  config.path_count = static_cast<u16>(plan_.paths.size());
  config.segment_bytes = plan_.segment_bytes;
  config.train_bytes_max = std::max<u32>(65'000, plan_.segment_bytes);
  config.rtt_expected_ns = 2 * plan_.paths.front().delay_ns;  // a real handshake would have measured this
  config.port_buffer_bytes = plan_.port_buffer_bytes;
  config.local_token = config.remote_token = seed_of(plan_, 6, pairs_.size());
  core::Stack& sender = hosts_[from]->stack;
  core::Stack& receiver = hosts_[to]->stack;
  bool ok =
      sender.reserve_peer(&pair.at_sender) == Status::ok && receiver.reserve_peer(&pair.at_receiver) == Status::ok;
  config.remote_peer = pair.at_receiver;
  ok = ok && sender.open_peer(now_ns_, pair.at_sender, config) == Status::ok;
  config.remote_peer = pair.at_sender;
  ok = ok && receiver.open_peer(now_ns_, pair.at_receiver, config) == Status::ok;
  if (!ok) violate("setup", "a peer could not be opened");
  hosts_[from]->peers.resize(pair.at_sender + 1);
  hosts_[from]->peers[pair.at_sender] = to;
  hosts_[to]->peers.resize(std::max<std::size_t>(hosts_[to]->peers.size(), pair.at_receiver + 1));
  hosts_[to]->peers[pair.at_receiver] = from;
  return pair;
}

void Arena::make_flow(u32 index) {
  flows_.push_back(std::make_unique<Flow>());
  Flow& flow = *flows_.back();
  flow.plan = plan_.flows[index];
  flow.number = index;
  flow.messages = std::make_unique<Message[]>(2 * flow.plan.ahead);
  for (u32 i = 0; i < 2 * flow.plan.ahead; ++i) flow.messages[i].flow = index;
  Pair& pair = pair_of(flow.plan.from, flow.plan.to);
  pair.flows.push_back(index);
  Host& from = *hosts_[pair.from];
  Host& to = *hosts_[pair.to];
  bool ok =
      from.stack.reserve_flow(&flow.at_sender) == Status::ok && to.stack.reserve_flow(&flow.at_receiver) == Status::ok;
  core::FlowConfig config;
  config.local_token = config.remote_token = seed_of(plan_, 7, index);
  config.peer = pair.at_sender;
  config.remote_flow = flow.at_receiver;
  ok = ok && from.stack.open_flow(now_ns_, flow.at_sender, config) == Status::ok;
  config.peer = pair.at_receiver;
  config.remote_flow = flow.at_sender;
  ok = ok && to.stack.open_flow(now_ns_, flow.at_receiver, config) == Status::ok;
  if (!ok) violate("setup", "a flow could not be opened");
  from.flows.push_back(index);
  to.flows.push_back(index);
  if (flow.plan.messages == 0) {
    endless_ = true;
  } else {
    ++unfinished_;
  }
}

}  // namespace weft::sim
