// Reserves and opens flows. Reserving a flow gives indices and tokens to put into a frame; opening it needs the peer's
// indices and tokens. Functions of a stack or a datapath are called on its engine's thread.
#include "native/control/flow_setup.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "native/engine/clock.h"
#include "native/engine/setup/descriptor_budget.h"

namespace weft::control {

namespace {

// How often a peer that has never answered is probed again after the probes at its opening: at a quarter and at half of
// the silence limit. At the limit its session ends.
constexpr std::uint32_t kAsksMax = 2;
// How many indices of flows are reserved with one call to an engine.
constexpr std::size_t kSpareFlows = 32;
// getrandom() fills 256 bytes without being interrupted.
constexpr std::size_t kTokensMax = 32;

// Runs on the engine's thread. Releases a reserved peer that was never opened.
void release_peer(engine::Engine* engine, std::uint32_t index) {
  engine->datapath().close_link(index);
  engine->stack().release_peer(index);
}

std::uint64_t number_of(std::uint32_t engine, std::uint32_t peer) noexcept {
  return std::uint64_t{engine} << 32 | peer;
}

}  // namespace

std::uint64_t random_token() noexcept {
  std::uint64_t token = 0;
  random_tokens(&token, 1);
  return token;
}

void random_tokens(std::uint64_t* tokens, std::size_t count) noexcept {
  while (count != 0) {
    const std::size_t some = std::min(count, kTokensMax), bytes = some * sizeof *tokens;
    if (::getrandom(tokens, bytes, 0) != static_cast<ssize_t>(bytes)) continue;
    if (std::find(tokens, tokens + some, 0) != tokens + some) continue;
    tokens += some;
    count -= some;
  }
}

// Runs on the engine's thread.
void FlowSetup::log_notice(engine::Engine* engine) {
  const std::string notice = engine->datapath().take_notice();
  if (notice.empty()) return;
  missing_log_.log(engine::now_ns(), engine::LogLevel::warn, "engine " + std::to_string(engine->id()) + ": " + notice);
}

// Reserves a peer and opens its link. Runs on the engine's thread.
Status FlowSetup::reserve_peer(engine::Engine* engine, std::uint32_t device, PeerPlace* place, std::string* error) {
  const Status status = engine->stack().reserve_peer(&place->index);
  if (status != Status::ok) return status;
  datapath::LinkPlan plan;
  plan.peer = place->index;
  plan.device = device;
  plan.path_count = static_cast<std::uint16_t>(knobs_->paths);
  plan.places = &datapath_->found.devices[device].places;
  place->token = random_token();
  errno = 0;
  if (engine->datapath().open_link(plan, &place->params, error)) {
    if (!error->empty()) {
      missing_log_.log(engine::now_ns(), engine::LogLevel::warn,
                       "engine " + std::to_string(engine->id()) + " opened fewer than " +
                           std::to_string(plan.path_count) + " paths to a peer: " + *error);
    }
    error->clear();
    log_notice(engine);
    return Status::ok;
  }
  const int problem = errno;
  engine->stack().release_peer(place->index);
  return engine::is_out_of_descriptors(problem) ? Status::out_of_descriptors : Status::system_error;
}

// Takes an index for a flow. Indices are reserved several at a time, because each call to an engine takes as long as
// the rest of opening a connection.
Status FlowSetup::take_spare(engine::Engine* engine, std::uint32_t* index) {
  std::vector<std::uint32_t>& spare = spare_[engine->id()];
  if (spare.empty()) {
    spare.reserve(kSpareFlows);
    engine->call([&] {
      try {
        std::uint32_t fresh = 0;
        while (spare.size() < kSpareFlows && engine->stack().reserve_flow(&fresh) == Status::ok) {
          spare.push_back(fresh);
          engine->reserve_owner(fresh);
        }
      } catch (const std::bad_alloc&) {  // the last index has no owner's place
        engine->stack().release_flow(spare.back());
        spare.pop_back();
      }
    });
  }
  if (spare.empty()) return Status::out_of_memory;
  *index = spare.back();
  spare.pop_back();
  return Status::ok;
}

Status FlowSetup::reserve(std::uint32_t device, std::uint64_t session, std::uint32_t remote_device,
                          const std::vector<FlowPlan>& plans, std::vector<LocalFlow>* out, std::string* error) {
  std::vector<std::uint64_t> tokens(plans.size());
  random_tokens(tokens.data(), tokens.size());
  for (const FlowPlan& plan : plans) {
    LocalFlow flow;
    flow.engine = (*engines_)[plan.local_engine].get();
    flow.key = PeerKey{session, plan.local_engine, device, remote_device, plan.remote_engine, plan.apart};
    flow.end.engine = plan.local_engine;
    flow.end.remote_engine = plan.remote_engine;
    const auto [place, fresh] = peers_.try_emplace(flow.key);
    Status status = Status::ok;
    try {
      if (fresh) flow.engine->call([&] { status = reserve_peer(flow.engine, device, &place->second, error); });
      if (status == Status::ok) {
        status = take_spare(flow.engine, &flow.end.flow);
        if (status != Status::ok && fresh) {
          flow.engine->call([&] { release_peer(flow.engine, place->second.index); });
        }
      }
    } catch (const std::bad_alloc&) {  // the next dial must not take the place for a whole one
      status = Status::out_of_memory;
    }
    if (status != Status::ok) {
      if (fresh) peers_.erase(place);
      give_back(*out);
      if (error->empty()) *error = "an engine has no index or no memory left for another flow: close some connections";
      return status;
    }
    if (fresh) sessions_[number_of(plan.local_engine, place->second.index)] = session;
    ++place->second.reserved;
    flow.end.peer = place->second.index;
    flow.end.peer_token = place->second.token;
    flow.end.params = place->second.params;
    flow.end.flow_token = tokens[out->size()];
    out->push_back(std::move(flow));
  }
  return Status::ok;
}

void FlowSetup::describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                         Open* out) const {
  const datapath::DeviceState& state = datapath_->found.devices[device];
  out->device = device;
  out->segment_bytes = state.segment_bytes;
  out->train_bytes = state.train_bytes;
  out->payload_crc = checks_payload();
  out->eager_bytes = static_cast<std::uint64_t>(knobs_->eager_bytes);
  out->eager_slots = static_cast<std::uint64_t>(knobs_->eager_slots);
  // Peers that are already open keep their segment size, so the route is looked up only for new ones: that costs four
  // system calls.
  const bool fresh =
      std::any_of(flows.begin(), flows.end(), [&](const auto& flow) { return !peers_.at(flow.key).open; });
  if (fresh && to != nullptr && datapath_->entry->routed) {
    const std::uint32_t bytes = datapath_->entry->route_segment_bytes(engine::KnobSettings(*knobs_), *to);
    if (bytes != 0) out->segment_bytes = std::min(out->segment_bytes, bytes);
  }
  for (const datapath::Place& place : state.places) out->addresses.push_back(place.address);
  for (const LocalFlow& flow : flows) {
    out->flows.push_back(flow.end);
    out->buffer_bytes = static_cast<std::uint64_t>(flow.engine->buffer_bytes());
  }
}

Status FlowSetup::open_peer(const LocalFlow& local, const engine::PolicySet& policies, const FlowEnd& remote,
                            const Open& open, std::uint32_t segment_bytes, std::int64_t rtt_expected_ns,
                            std::int64_t open_bytes, std::string* error) {
  PeerPlace& place = peers_.at(local.key);
  if (place.open) {
    if (place.remote_index == remote.peer && place.remote_token == remote.peer_token) return Status::ok;
    *error = "the peer sent a different index or token for an engine than in an earlier connection";
    return Status::refused;
  }
  const std::uint32_t device = local.key.device;
  core::PeerConfig config;
  config.remote_peer = remote.peer;
  config.remote_token = remote.peer_token;
  config.local_token = place.token;
  config.segment_bytes = static_cast<std::uint16_t>(segment_bytes);
  const std::uint32_t train = std::min(datapath_->found.devices[device].train_bytes, open.train_bytes);
  config.train_bytes_max = std::max(train, segment_bytes);
  const auto buffer = static_cast<std::int64_t>(std::min<std::uint64_t>(open.buffer_bytes, 1u << 30));
  config.port_buffer_bytes = std::max<std::int64_t>(buffer, 2 * config.train_bytes_max);
  if (policies.path != nullptr) config.path = policies.path->choice();
  config.payload_crc = open.payload_crc || checks_payload();
  config.rtt_expected_ns = rtt_expected_ns;
  config.open_bytes = open_bytes;
  std::vector<std::string> addresses;
  for (const datapath::SocketAddress& address : open.addresses) addresses.push_back(address.text());
  Status status = Status::ok;
  telemetry::PeerPageRow* row = nullptr;
  if (page_ != nullptr) {
    row = page_->take_peer(local.engine->id(), addresses.empty() ? "" : addresses[0]);
    if (row == nullptr) page_->process().counters.rows_refused.add_shared(1);
  }
  local.engine->call([&] {
    local.engine->name_peer(place.index, std::move(addresses));
    datapath::Datapath& datapath = local.engine->datapath();
    const datapath::RemoteEnds theirs{&open.addresses, &remote.params};
    config.search_size = datapath_->entry->routed;
    if (datapath.connect_link(place.index, theirs, &config.path_count, error)) {
      log_notice(local.engine);
      if (row != nullptr && config.path_count <= knobs_->paths) {
        row->paths.set(config.path_count);
        config.counters = &row->counters;
        config.path_counters = page_->paths_of(row);
      }
      status = local.engine->stack().open_peer(local.engine->time_ns(), place.index, config);
    } else {
      status = Status::refused;
    }
  });
  if (row != nullptr && (status != Status::ok || config.counters == nullptr)) {
    page_->give_back(row);
    row = nullptr;
  }
  place.open = status == Status::ok;
  place.strange = place.silent = place.open && open_bytes >= 0;
  place.silent_since_ns = engine::now_ns();
  place.paths = config.path_count;
  place.row = row;
  place.remote_index = remote.peer;
  place.remote_token = remote.peer_token;
  if (status != Status::ok && error->empty()) *error = "the paths to the peer cannot be opened";
  return status;
}

Status FlowSetup::open(std::uint64_t connection, const std::vector<LocalFlow>& flows, const engine::PolicySet& policies,
                       const Open& remote, std::uint32_t segment_bytes, std::int64_t rtt_expected_ns,
                       std::int64_t open_bytes, const std::string& peer_address, engine::Notifier* notifier,
                       std::shared_ptr<engine::ConnectionCore>* out, std::string* error) {
  std::vector<engine::FlowRef> refs;
  Status status = Status::ok;
  for (std::size_t i = 0; i < flows.size() && status == Status::ok; ++i) {
    // What is sent to an unauthenticated peer before its first answer is limited by the bytes that came from it. An
    // open frame may open a new peer with each flow, so only a share of the frame's bytes counts for each.
    const std::int64_t share = open_bytes < 0 ? -1 : open_bytes / static_cast<std::int64_t>(flows.size());
    status = open_peer(flows[i], policies, remote.flows[i], remote, segment_bytes, rtt_expected_ns, share, error);
    refs.push_back({flows[i].engine, flows[i].end.flow});
  }
  if (status != Status::ok) {
    give_back(flows);
    return status;
  }
  const bool reads_payload = remote.payload_crc || checks_payload();
  engine::ConnectionTrace trace;
  if (trace_ != nullptr) {
    const std::uint64_t pair = remote.flows[0].flow_token ^ flows[0].end.flow_token;
    const std::size_t paths = static_cast<std::size_t>(knobs_->paths);
    const bool local = !remote.local.empty();  // all messages pass through shared memory
    trace = {
        trace_,
        {pair, peer_address, local ? "local" : datapath_->entry->name, local ? 1 : flows.size(), local ? 0 : paths}};
  }
  auto core = std::make_shared<engine::ConnectionCore>(connection, refs, peer_address, reads_payload, notifier,
                                                       std::move(trace));
  defer_flows(flows, policies, remote, core.get());
  std::size_t opened = 0;
  for (; opened < flows.size() && status == Status::ok; ++opened) {
    status = open_flow(flows[opened], opened, policies, remote, core);
  }
  if (status != Status::ok) {
    *error = "a flow cannot be opened";
    core->fail(status);  // closes the flows that were opened; give_back() releases those that are only reserved
    give_back({flows.begin() + static_cast<std::ptrdiff_t>(opened) - 1, flows.end()});
    return status;
  }
  *out = std::move(core);
  return Status::ok;
}

// Short messages need the first flow only. The others are opened when a long message first has a stripe for them.
void FlowSetup::defer_flows(const std::vector<LocalFlow>& flows, const engine::PolicySet& policies, const Open& remote,
                            engine::ConnectionCore* core) {
  if (flows.size() == 1) return;
  std::vector<engine::ConnectionCore::DeferredEnd> ends;
  ends.reserve(flows.size() - 1);
  for (std::size_t i = 1; i < flows.size(); ++i) {
    const FlowEnd &local = flows[i].end, &other = remote.flows[i];
    ends.push_back({local.flow_token, other.flow_token, local.peer, other.flow});
  }
  core->defer_flows(std::move(ends), {remote.eager_bytes, remote.eager_slots},
                    policies.any() ? std::make_unique<engine::PolicySet>(policies) : nullptr);
}

// Opens the flow of a stripe, or defers it, and makes the connection its owner.
Status FlowSetup::open_flow(const LocalFlow& flow, std::size_t stripe, const engine::PolicySet& policies,
                            const Open& remote, const std::shared_ptr<engine::ConnectionCore>& core) {
  Status status = Status::ok;
  if (stripe == core::kHomeFlow) {
    status = open_home(flow, policies, remote, core);
  } else if (!flow.engine->defer(flow.end.flow, flow.end.peer, core)) {
    status = Status::out_of_memory;
  }
  if (status != Status::ok) return status;
  PeerPlace& place = peers_.at(flow.key);
  --place.reserved;
  ++place.flows;
  return status;
}

Status FlowSetup::open_home(const LocalFlow& flow, const engine::PolicySet& policies, const Open& remote,
                            const std::shared_ptr<engine::ConnectionCore>& core) {
  core::FlowConfig config;
  config.peer = flow.end.peer;
  config.remote_flow = remote.flows[core::kHomeFlow].flow;
  config.remote_token = remote.flows[core::kHomeFlow].flow_token;
  config.local_token = flow.end.flow_token;
  config.stripe = core::kHomeFlow;
  config.stripes = static_cast<std::uint8_t>(remote.flows.size());
  config.eager_bytes_max = remote.eager_bytes;
  config.eager_slots_max = remote.eager_slots;
  config.passed = core->passed();
  policies.put_into(&config);
  engine::Engine* engine = flow.engine;
  Status status = Status::ok;
  engine->call([&] {
    status = engine->stack().open_flow(engine->time_ns(), flow.end.flow, config);
    if (status == Status::ok) engine->own_flow(flow.end.flow, core);
  });
  return status;
}

void FlowSetup::give_back(const std::vector<LocalFlow>& flows) {
  for (const LocalFlow& flow : flows) {
    const auto place = peers_.find(flow.key);
    // A peer that was never opened is released with the last flow that was reserved for it.
    const bool last = place != peers_.end() && --place->second.reserved == 0 && !place->second.open;
    flow.engine->call([&] {
      flow.engine->stack().release_flow(flow.end.flow);
      if (last) release_peer(flow.engine, place->second.index);
    });
    if (last) release_place(place);
  }
}

void FlowSetup::release_place(std::map<PeerKey, PeerPlace>::iterator place) noexcept {
  sessions_.erase(number_of(place->first.engine, place->second.index));
  peers_.erase(place);
}

// Makes only one call to each engine, however many of the session's peers the engine has.
void FlowSetup::forget(std::uint64_t session, Status reason) {
  std::map<std::uint32_t, std::vector<PeerPlace>> gone;  // by engine
  for (auto [place, end] = range(session); place != end;) {
    const auto next = std::next(place);
    gone[place->first.engine].push_back(place->second);
    release_place(place);
    place = next;
  }
  for (const auto& [id, places] : gone) {
    engine::Engine* engine = (*engines_)[id].get();
    // The engine closes an opened peer's link and releases its index after the peer's last flow. A peer that has never
    // answered is not notified, because waiting for its confirmation would keep its memory.
    engine->call([&] {
      if (reason == Status::peer_dead) engine->receive_waiting();
      for (const PeerPlace& place : places) {
        if (!place.open) {
          release_peer(engine, place.index);
        } else if (reason == Status::peer_dead || place.silent) {
          engine->stack().fail_peer(engine->time_ns(), place.index, reason);
        } else {
          engine->stack().give_up_peer(engine->time_ns(), place.index, reason);
        }
      }
    });
  }
}

// Makes only one call to each engine, however many of the session's peers the engine has.
Survey FlowSetup::survey(std::uint64_t session, bool probe) {
  Survey found;
  std::map<std::uint32_t, std::vector<std::uint32_t>> open;  // engine -> indices of its open peers
  for (auto [place, end] = range(session); place != end; ++place) {
    found.flows += place->second.reserved;
    if (place->second.open) open[place->first.engine].push_back(place->second.index);
  }
  for (const auto& [id, indices] : open) {
    engine::Engine* engine = (*engines_)[id].get();
    engine->call([&] {
      for (const std::uint32_t index : indices) {
        const core::Peer* peer = engine->stack().peer(index);
        if (peer == nullptr) continue;
        found.heard_ns = std::max(found.heard_ns, peer->heard_ns());
        found.quiet = found.quiet || (peer->waited_for() && peer->quiet(engine->time_ns()));
        found.flows += peer->flows();
        if (probe) engine->stack().probe_peer(index);
      }
    });
  }
  return found;
}

std::size_t FlowSetup::peers_of(std::uint64_t session) const {
  const auto [begin, end] = const_cast<FlowSetup*>(this)->range(session);
  return static_cast<std::size_t>(std::distance(begin, end));
}

void FlowSetup::count(std::int64_t now_ns, std::uint64_t session) {
  std::map<std::uint32_t, std::vector<PeerPlace*>> open;
  for (auto [place, end] = range(session); place != end; ++place) {
    if (place->second.open && place->second.strange) open[place->first.engine].push_back(&place->second);
  }
  // Silent peers are probed again, because the probes at the opening may have been lost in an outage of all paths.
  const auto asks = [&](const PeerPlace& place) {
    return place.silent && place.asked < kAsksMax &&
           now_ns - place.silent_since_ns >= (place.asked + 1) * knobs_->peer_silence_ns / 4;
  };
  for (const auto& [id, places] : open) {
    engine::Engine* engine = (*engines_)[id].get();
    engine->call([&] {
      for (PeerPlace* place : places) {
        const core::Peer* peer = engine->stack().peer(place->index);
        if (peer == nullptr) continue;
        place->flows = peer->flows();
        place->silent = place->silent && peer->paths().gate().is_closed();
        if (!asks(*place)) continue;
        ++place->asked;
        engine->stack().probe_peer(place->index);
      }
    });
  }
}

namespace {

void add_peer(Holding* holding, std::size_t paths, std::size_t flows) noexcept {
  ++holding->peers;
  holding->paths += paths;
  holding->flows += flows;
}

}  // namespace

Holding FlowSetup::holding(std::uint64_t session, const std::vector<PeerKey>& more) const {
  Holding found;
  const auto [begin, end] = const_cast<FlowSetup*>(this)->range(session);
  for (auto place = begin; place != end; ++place) {
    const PeerPlace& peer = place->second;
    add_peer(&found, peer.open ? peer.paths : static_cast<std::size_t>(knobs_->paths), peer.flows + peer.reserved);
    if (peer.open && !peer.silent) continue;
    ++found.silent_peers;
    const bool older = found.silent_since_ns < 0 || peer.silent_since_ns < found.silent_since_ns;
    if (older) found.silent_since_ns = peer.silent_since_ns;
  }
  std::vector<PeerKey> fresh;
  for (const PeerKey& key : more) {
    ++found.flows;
    if (peers_.count(key) != 0 || std::find(fresh.begin(), fresh.end(), key) != fresh.end()) continue;
    fresh.push_back(key);
    add_peer(&found, static_cast<std::size_t>(knobs_->paths), 0);
  }
  return found;
}

void FlowSetup::credit_pause(std::int64_t pause_ns) noexcept {
  for (auto& [key, place] : peers_) place.silent_since_ns += pause_ns;
}

std::uint64_t FlowSetup::session_of(std::uint32_t engine, std::uint32_t peer) const {
  const auto place = sessions_.find(number_of(engine, peer));
  return place == sessions_.end() ? 0 : place->second;
}

}  // namespace weft::control
