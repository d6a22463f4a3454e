// Opens connections in a session, at the dialling and at the listening end, and repeats frames that were lost with a
// control socket. Every frame carries (session, dial), so that duplicates have no effect.
#include <algorithm>

#include "native/control/control_plane.h"
#include "native/engine/clock.h"
#include "native/engine/log.h"

namespace weft::control {
namespace {

// Default number of flows of a connection. A single connection does not become faster with more flows.
constexpr std::uint16_t kStripesAuto = 8;
// Dialler: open requests of a session that wait for an answer at the same time; later ones are queued.
constexpr std::uint32_t kOpeningMax = 16;
// Listener: connections that were opened and not yet confirmed, of one session and of all; further ones are refused.
constexpr std::size_t kUnconfirmedMax = 32, kUnconfirmedOfAllMax = 2048;
// Limits on the state that one remote process can make this process store.
constexpr std::size_t kPeersMax = 1024, kUnclaimedMax = 4096;

// Whether a connection has policies of its own, which only messages on the network follow.
bool chosen(const engine::PolicySet& policies) noexcept {
  return policies.window != nullptr || policies.path != nullptr || policies.loss != nullptr || policies.own_credit;
}

}  // namespace

void ControlPlane::start_dial(const std::shared_ptr<DialState>& dial) {
  if (is_set(dial->key) && keyring_.tls() == nullptr)
    return finish_dial(dial, Status::system_error, "the handle's key cannot be proved: " + keyring_.tls_problem());
  Session* session = dialled_session(*dial);
  PendingDial& pending = dials_[dial->id];
  pending.state = dial;
  pending.session = session->id;
  session->waiting.push_back(dial->id);
  session->busy_ns = engine::now_ns();
  if (session->greeted) {
    send_opens(session);
  } else if (session->attempt_ns == 0) {
    need_socket(session, engine::now_ns());
    const bool begun = std::any_of(sockets_.begin(), sockets_.end(),
                                   [&](const auto& each) { return each.second->session == session->id; });
    if (begun) return;
    const bool known = session->last_status != Status::would_block;
    end_session(session, known ? session->last_status : Status::address_unavailable, session->last_error, false);
  }
}

void ControlPlane::finish_dial(const std::shared_ptr<DialState>& dial, Status status, const std::string& error) {
  {
    const std::lock_guard<std::mutex> lock(dial->mutex);
    dial->status = status;
    dial->error = error;
  }
  dial->changed.notify_all();
  const auto place = dials_.find(dial->id);
  if (place != dials_.end()) {
    Session* session = find_session(place->second.session);
    if (session != nullptr && !place->second.frame.empty()) end_open(session, dial->id, status);
    if (status != Status::ok) setup_.give_back(place->second.flows);
    dials_.erase(place);
  }
  notifier_->notify();
}

// Called when a session is over. The session may have used a stale control socket, so each of its dials is tried once
// more in a new session.
void ControlPlane::move_dials(std::uint64_t session, Status outcome, const std::string& why) {
  Session* old = find_session(session);
  std::vector<std::shared_ptr<DialState>> again, failed;
  for (auto& [id, pending] : dials_) {
    if (pending.session != session) continue;
    const bool retries = old != nullptr && old->greeted && !pending.state->retried;
    (retries ? again : failed).push_back(pending.state);
  }
  for (const auto& dial : failed) finish_dial(dial, outcome, why);
  for (const auto& dial : again) {
    dial->retried = true;
    const auto place = dials_.find(dial->id);
    setup_.give_back(place->second.flows);
    dials_.erase(place);
    const std::lock_guard<std::mutex> lock(mutex_);
    new_dials_.push_back(dial);
  }
  if (!again.empty()) wake();
}

void ControlPlane::send_opens(Session* session) {
  if (!session->greeted || session->current == 0) return;
  if (session->proofs != 0 && engine::now_ns() < session->proofs_until_ns) return;
  while (!session->waiting.empty() && session->opening < kOpeningMax) {
    const std::uint64_t dial = session->waiting.front();
    session->waiting.pop_front();
    const auto place = dials_.find(dial);
    if (place == dials_.end() || place->second.session != session->id) continue;
    if (!send_open(session, &place->second)) continue;
    ++session->opening;
  }
}

bool ControlPlane::send_open(Session* session, PendingDial* pending) {
  const std::uint16_t ours = static_cast<std::uint16_t>(engines_->size()), theirs = session->remote_engines;
  const std::uint16_t most = std::min<std::uint16_t>(std::max(ours, theirs), kStripesAuto);
  const std::shared_ptr<DialState> dial = pending->state;
  Open open;
  propose_memory(session, pending, &open);
  // The flow of a connection through shared memory carries no messages: it shows that the peer lives.
  const auto stripes = static_cast<std::uint16_t>(pending->half != nullptr ? 1
                                                  : knobs_->stripes != 0   ? knobs_->stripes
                                                                           : most);
  const std::uint64_t apart = dial->policies.path == nullptr ? 0 : dial->policies.path->number;
  // The engine of the home flow. Two processes compute the same one for each other's connections, so that their short
  // messages keep one engine busy. The clients of a server get different ones.
  const std::uint64_t first = (node_ ^ session->node) % kEnginesMax + next_engine_++;
  std::vector<FlowPlan> plans;
  for (std::uint16_t i = 0; i < stripes; ++i) {
    plans.push_back(
        {static_cast<std::uint16_t>((first + i) % ours), static_cast<std::uint16_t>((first + i) % theirs), apart});
  }
  std::string error;
  const Status status =
      setup_.reserve(dial->device, session->id, session->remote_device, plans, &pending->flows, &error);
  if (status != Status::ok) {
    pending->flows.clear();
    finish_dial(dial, status, error);
    return false;
  }
  open.dial = dial->id;
  open.listener = dial->listener;
  setup_.describe(dial->device, pending->flows, &dial->to, &open);
  pending->segment_bytes = open.segment_bytes;
  pending->frame = encode(FrameType::open, open);
  dial->deadline_ns = engine::now_ns() + knobs_->handshake_timeout_ns;  // time in the queue does not count
  static_cast<void>(send_to(session, pending->frame));
  return true;
}

// Whether a connection of this process may pass its messages through shared memory.
bool ControlPlane::shares_memory(const engine::PolicySet& policies) const noexcept {
  return host_ != nullptr && host_->aside() == nullptr && !chosen(policies);
}

// Proposes to a process of this host that all messages of the connection pass through shared memory.
void ControlPlane::propose_memory(Session* session, PendingDial* pending, Open* open) {
  const DialState& dial = *pending->state;
  if (!shares_memory(dial.policies) || session->local.empty() || dial.without_memory) return;
  const std::uint64_t words[] = {random_token(), random_token()};
  const std::string token(reinterpret_cast<const char*>(words), sizeof words);
  std::string why;
  pending->half = host_->propose(session->local, token, &why);
  if (pending->half != nullptr) open->local = token;
  if (!why.empty())
    refusal_log_.log(engine::now_ns(), engine::LogLevel::info,
                     session->name + " is on this host, but messages go over the network: " + why);
}

// Takes the memory that the dialling process proposed. Null: messages go over the network, and `open` says so too.
std::unique_ptr<local::Half> ControlPlane::take_memory(const Session& session, const engine::PolicySet& policies,
                                                       Open* open) {
  std::unique_ptr<local::Half> half;
  std::string why;
  if (shares_memory(policies) && !open->local.empty()) half = host_->take(open->local, &why);
  if (half == nullptr) open->local.clear();
  if (!why.empty())
    refusal_log_.log(engine::now_ns(), engine::LogLevel::info,
                     session.name + " is on this host, but messages go over the network: " + why);
  return half;
}

Status ControlPlane::join_memory(std::unique_ptr<local::Half> half, std::uint64_t session,
                                 const std::shared_ptr<engine::ConnectionCore>& connection, std::string* error) {
  if (host_->join(std::move(half), session, connection)) return Status::ok;
  *error = "no thread or descriptor is left for messages through shared memory; WEFT_LOCAL=off does without";
  connection->fail(Status::out_of_descriptors);
  return Status::out_of_descriptors;
}

void ControlPlane::say_again(Session* session) {
  for (const auto& [id, pending] : dials_) {
    if (pending.session == session->id && !pending.frame.empty()) static_cast<void>(send_to(session, pending.frame));
  }
  for (Confirmed& each : confirmed_) {
    if (each.session != session->id) continue;
    each.until_ns = engine::now_ns() + knobs_->handshake_timeout_ns;
    static_cast<void>(send_to(session, encode(Confirm{each.dial})));
  }
  send_opens(session);
}

// Without a secret, data is sent only to addresses from which the peer has connected. Any other address that the peer
// states is replaced by one of those, so that no data reaches a third party; paths to a replaced address stay silent.
// With a secret, the stated addresses are trusted. Datapaths with queue pairs do not use these addresses, but
// FlowEnd::params.
void ControlPlane::keep_proved(const Session& session, Open* open) {
  if (keyring_.has_secret() || session.proved.empty()) return;
  if (!datapath_->entry->routed) return;
  for (datapath::SocketAddress& address : open->addresses) {
    const bool proved = std::any_of(session.proved.begin(), session.proved.end(),
                                    [&](const auto& known) { return same_host(known, address); });
    if (proved) continue;
    refusal_log_.log(
        engine::now_ns(), engine::LogLevel::warn,
        session.name + " states the address " + address.text() +
            " but has not connected from it: paths to it stay unused (with WEFT_SECRET_FILE they are used)");
    address = session.proved.front();
  }
}

// Drops the oldest open request of the sessions without a confirmed connection, because a genuine dialler confirms
// within a round trip. Returns false if there is no such request.
bool ControlPlane::drop_oldest_accept() {
  auto oldest = accepts_.end();
  for (auto place = accepts_.begin(); place != accepts_.end(); ++place) {
    const Session* session = find_session(place->first.first);
    if (session != nullptr && session->confirmed) continue;
    if (oldest == accepts_.end() || place->second.begun_ns < oldest->second.begun_ns) oldest = place;
  }
  if (oldest == accepts_.end()) return false;
  oldest->second.connection->fail(Status::timed_out);
  accepts_.erase(oldest);
  return true;
}

bool ControlPlane::has_accepts(std::uint64_t session) const noexcept {
  const auto first = accepts_.lower_bound({session, 0});
  return first != accepts_.end() && first->first.first == session;
}

std::size_t ControlPlane::accepts_of(std::uint64_t session) const noexcept {
  return static_cast<std::size_t>(
      std::distance(accepts_.lower_bound({session, 0}), accepts_.lower_bound({session + 1, 0})));
}

Status ControlPlane::check_limits(const Session& session, ListenerState* listener, const Open& open,
                                  std::string* error) {
  const std::size_t own = accepts_of(session.id);
  if (own >= kUnconfirmedMax || (accepts_.size() >= kUnconfirmedOfAllMax && !drop_oldest_accept())) {
    *error = "too many connections are being opened at once; try again later";
    return Status::refused;
  }
  const std::size_t peers = setup_.peers_of(session.id);
  if (peers + open.flows.size() > kPeersMax) {
    *error = "the two processes use too many pairs of engines and policies: " + std::to_string(peers) +
             " are open; lower WEFT_ENGINES or use fewer path policies";
    return Status::refused;
  }
  std::size_t unclaimed = 0;
  {
    const std::lock_guard<std::mutex> lock(listener->mutex);
    if (listener->ready.size() >= kUnclaimedMax)
      listener->ready.remove_if([](const auto& connection) { return connection->health() != Status::ok; });
    unclaimed = listener->ready.size();
  }
  if (unclaimed < kUnclaimedMax || drop_a_stranger(session.id)) return Status::ok;
  *error = std::to_string(unclaimed) + " connections wait to be accepted by this listener, which is its limit";
  return Status::refused;
}

// `open_bytes`: size of the open frame.
Status ControlPlane::accept_open(Session* session, Open* offered, std::int64_t open_bytes, PendingAccept* accept,
                                 std::string* error) {
  Open& open = *offered;
  accept->listener = listener_for(*session, open.listener);
  if (accept->listener == nullptr) {
    *error = session->guard == Guard::key ? "there is no listener with the requested id"
                                          : "there is no open listener with the requested id or port";
    return Status::refused;
  }
  ListenerState& listener = *accept->listener;
  std::vector<FlowPlan> plans;
  std::vector<PeerKey> peers;
  for (const FlowEnd& flow : open.flows) {
    if (flow.remote_engine >= engines_->size()) {
      *error = "a flow names engine " + std::to_string(flow.remote_engine) +
               ", which does not exist (this process has " + std::to_string(engines_->size()) + " engines)";
      return Status::refused;
    }
    // The third field is FlowPlan::apart: it tells peers of the same two engines apart. It is made of the token of the
    // dialler's peer, not of its index, because the index may be reused after a dial was abandoned.
    plans.push_back({flow.remote_engine, flow.engine, std::uint64_t{1} << 63 | flow.peer_token});
    peers.push_back({session->id, flow.remote_engine, listener.device, open.device, flow.engine, plans.back().apart});
  }
  if (plans.empty() || open.addresses.empty() || open.segment_bytes < 256 ||
      open.segment_bytes > datapath::kSegmentBytesMax ||
      open.train_bytes > wire::kMaxBurstSegments * datapath::kSegmentBytesMax) {
    *error = "the open frame has no flows or no addresses, or its segment size is out of range";
    return Status::refused;
  }
  Status status = check_limits(*session, &listener, open, error);
  if (status != Status::ok) return status;
  const bool strange = !session->is_authenticated();
  if (strange && !admit_open(*session, peers, error)) return Status::refused;
  std::vector<LocalFlow> flows;
  status = setup_.reserve(listener.device, session->id, open.device, plans, &flows, error);
  if (status != Status::ok) return status;
  Open reply;
  reply.dial = open.dial;
  setup_.describe(listener.device, flows, &open.addresses[0], &reply);
  reply.segment_bytes = std::min(reply.segment_bytes, open.segment_bytes);
  std::unique_ptr<local::Half> half = take_memory(*session, listener.policies, &open);
  reply.local = open.local;
  status = setup_.open(next_connection_++, flows, listener.policies, open, reply.segment_bytes, rtt_ns(*session),
                       strange ? open_bytes : -1, session->name, notifier_, &accept->connection, error);
  if (strange) budget_.set(session->id, setup_.holding(session->id));
  if (status != Status::ok) return status;
  if (half != nullptr) status = join_memory(std::move(half), session->id, accept->connection, error);
  if (status != Status::ok) return status;
  opened_at_ = accept->connection->flows()[core::kHomeFlow].engine;
  accept->begun_ns = engine::now_ns();
  accept->deadline_ns = accept->begun_ns + knobs_->handshake_timeout_ns;
  accept->reply = encode(FrameType::open_reply, reply);
  return Status::ok;
}

bool ControlPlane::on_open(Session* session, ControlSocket* socket, const Frame& frame) {
  Open open;
  if (!decode(frame.body, &open) || open.dial == 0) return false;
  const auto known = accepts_.find({session->id, open.dial});
  if (known != accepts_.end()) {
    send(socket, known->second.reply);  // the first reply may have been lost with its control socket
    return true;
  }
  keep_proved(*session, &open);
  const std::deque<std::uint64_t>& finished = session->finished;
  if (std::find(finished.begin(), finished.end(), open.dial) != finished.end()) return true;
  PendingAccept accept;
  std::string error;
  const auto bytes = static_cast<std::int64_t>(kFrameHeaderBytes + frame.body.size());
  const Status status = accept_open(session, &open, bytes, &accept, &error);
  if (status != Status::ok) {
    refuse(socket, open.dial, status, error);
    return true;
  }
  opened_ns_ = session->busy_ns = engine::now_ns();
  send(socket, accept.reply);
  accepts_.emplace(std::pair{session->id, open.dial}, std::move(accept));
  return true;
}

bool ControlPlane::on_open_reply(Session* session, const Frame& frame) {
  Open reply;
  if (!decode(frame.body, &reply)) return false;
  const auto place = dials_.find(reply.dial);
  if (place == dials_.end() || place->second.session != session->id) return true;  // the dial was abandoned
  const std::shared_ptr<DialState> dial = place->second.state;
  std::vector<LocalFlow> flows;
  flows.swap(place->second.flows);
  std::unique_ptr<local::Half> half = std::move(place->second.half);
  if (half == nullptr) reply.local.clear();
  if (half != nullptr && reply.local.empty()) {
    dial_without_memory(session, dial, flows);
    return true;
  }
  if (reply.flows.size() != flows.size() || reply.addresses.empty() || reply.segment_bytes < 256 ||
      reply.segment_bytes > place->second.segment_bytes) {
    setup_.give_back(flows);
    finish_dial(dial, Status::refused, "the peer's open_reply does not match the open frame");
    return true;
  }
  std::shared_ptr<engine::ConnectionCore> connection;
  std::string error;
  Status status = setup_.open(next_connection_++, flows, dial->policies, reply, reply.segment_bytes, rtt_ns(*session),
                              -1, session->name, notifier_, &connection, &error);
  if (status == Status::ok && half != nullptr) status = join_memory(std::move(half), session->id, connection, &error);
  bool abandoned = false;
  if (status == Status::ok) {
    confirmed_.push_back({engine::now_ns() + knobs_->handshake_timeout_ns, session->id, dial->id});
    static_cast<void>(send_to(session, encode(Confirm{dial->id})));
    on_confirmed(session);
    const std::lock_guard<std::mutex> lock(dial->mutex);
    abandoned = dial->abandoned;
    if (!abandoned) dial->connection = connection;  // an abandoned dial must not keep its connection alive
  }
  if (abandoned) connection->fail(Status::cancelled);
  finish_dial(dial, status, error);
  send_opens(session);
  return true;
}

// The peer does not take the memory: opens the connection again, with all flows, which then carry its messages.
void ControlPlane::dial_without_memory(Session* session, const std::shared_ptr<DialState>& dial,
                                       const std::vector<LocalFlow>& flows) {
  setup_.give_back(flows);
  end_open(session, dial->id, Status::cancelled);
  dials_.erase(dial->id);
  dial->id = random_token();
  dial->without_memory = true;
  start_dial(dial);
}

// To be called when a dial no longer waits for an answer to its open frame. If the dial was given up, tells the peer,
// which would otherwise keep the state of this open request until its own handshake timeout.
void ControlPlane::end_open(Session* session, std::uint64_t dial, Status status) {
  --session->opening;
  const Refuse given_up{dial, static_cast<std::uint32_t>(status), kControlVersion, "abandoned by the dialler"};
  if (status == Status::cancelled || status == Status::timed_out) static_cast<void>(send_to(session, encode(given_up)));
}

// Remembers that an open request is finished, because duplicates of it may still arrive from a lost control socket.
void ControlPlane::forget_open(Session* session, std::uint64_t dial) {
  constexpr std::size_t kFinishedMax = 1024;  // far more open requests than can be in transit
  session->finished.push_back(dial);
  if (session->finished.size() > kFinishedMax) session->finished.pop_front();
}

void ControlPlane::on_confirmed(Session* session) {
  if (std::exchange(session->confirmed, true)) return;
  tell(core::ProcessEvent::Kind::connected, *session, 0);
}

bool ControlPlane::on_confirm(Session* session, const Frame& frame) {
  Confirm confirm;
  if (!decode(frame.body, &confirm)) return false;
  const auto place = accepts_.find({session->id, confirm.dial});
  if (place == accepts_.end()) return true;  // a duplicate confirmation, or the dial was abandoned before
  const PendingAccept accepted = std::move(place->second);
  accepts_.erase(place);
  opened_ns_ = engine::now_ns();
  forget_open(session, confirm.dial);
  on_confirmed(session);
  bool closed = false;
  {
    const std::lock_guard<std::mutex> lock(accepted.listener->mutex);
    closed = accepted.listener->closed;
    if (!closed) accepted.listener->ready.push_back(accepted.connection);
  }
  if (closed) accepted.connection->fail(Status::connection_closed);
  accepted.listener->changed.notify_all();
  notifier_->notify();
  return true;
}

}  // namespace weft::control
