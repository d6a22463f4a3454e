// Handles the frames received on control sockets. A handler that returns false makes the caller drop the control
// socket. No other frame is processed before the hello; if the peer begins with TLS, nothing is processed before it has
// proved that it has the key.
#include <algorithm>

#include "native/control/control_plane.h"
#include "native/engine/clock.h"
#include "native/engine/log.h"
#include "native/engine/printable.h"

namespace weft::control {
namespace {

constexpr int kFramesATurn = 256, kStrangersFramesATurn = 16;
// How long opening a connection waits for this end's other NICs to connect to the peer; a NIC that is down never does.
constexpr std::int64_t kProofNs = 1'000'000'000;
constexpr std::uint32_t kAgeMsMax = 1000;  // an engine whose last iteration is older than this is starved of CPU
constexpr char kOneSecret[] = "only one of the two ends has WEFT_SECRET_FILE set";
constexpr char kOtherSecret[] = "the secrets in WEFT_SECRET_FILE differ";
constexpr char kOtherKey[] =
    "the peer does not accept the handle's key: is the handle complete, and WEFT_SECRET_FILE the same at both ends?";
constexpr char kPlainAnswer[] =
    "the peer does not know the handle's key: it is another process than the one that made the handle, or an older "
    "weft";
constexpr char kHandlesOnly[] =
    "the listening process accepts only peers that have a handle of one of its listeners; to be dialled by host and "
    "port, the listener has to be made with listen(open=True)";
constexpr char kNoHandle[] = "dialled by host and port, but this process has no listener made with open=True";
constexpr char kGone[] = "the requested process is gone; another process listens at its address";

std::string version_text(std::uint16_t theirs) {
  return "the peer uses version " + std::to_string(theirs) + " of the control protocol, this process version " +
         std::to_string(kControlVersion) + ": install the same weft on both ends";
}

bool same_end(const datapath::SocketAddress& a, const datapath::SocketAddress& b) noexcept {
  return same_host(a, b) && a.port() == b.port();
}

}  // namespace

void ControlPlane::stranger(const ControlSocket& socket, const std::string& what) {
  if (socket.dialled()) return;  // not logged, because the failed dial reports the reason
  ++counters_.strangers_refused;
  last_refusal_.set(engine::now_ns(), socket.peer_address + ": it " + what);
  stranger_log_.log(engine::now_ns(), engine::LogLevel::warn,
                    "dropped an unknown peer at the control port, " + socket.peer_address + ": it " + what +
                        " (counter strangers_refused)");
}

void ControlPlane::refuse(ControlSocket* socket, std::uint64_t dial, Status status, const std::string& text) {
  refusal_log_.log(engine::now_ns(), engine::LogLevel::warn, "refused " + socket->peer_address + ": " + text);
  last_refusal_.set(engine::now_ns(), socket->peer_address + ": " + text);
  if (!socket->dialled() && socket->state() != ControlSocket::State::ready) ++counters_.strangers_refused;
  Refuse refusal;
  refusal.dial = dial;
  refusal.status = static_cast<std::uint32_t>(status);
  refusal.text = text;
  send(socket, encode(refusal));
}

void ControlPlane::on_readable(ControlSocket* socket) {
  const std::uint64_t id = socket->id();
  if (!socket->flush()) {
    drop_socket(socket, "the connection was reset", Status::would_block);
    return;
  }
  // Handles fewer frames per iteration for a session without a confirmed connection, so that unauthenticated peers
  // cannot starve other sessions.
  const Session* session = find_session(socket->session);
  const bool known = session != nullptr && (session->dialled || session->confirmed);
  // A socket without a hello is not deferred: its peer may still prove a key, and its frames take little time.
  const bool strange = session != nullptr && !session->dialled && !session->is_authenticated();
  for (int i = 0; i < (known ? kFramesATurn : kStrangersFramesATurn); ++i) {
    if (strange && engine::now_ns() >= strangers_until_ns_) {
      if (!socket->deferred) deferred_.push_back(id);
      socket->deferred = true;
      return;
    }
    Frame frame;
    std::uint16_t version = 0;
    const ControlSocket::Read read = socket->poll(&frame, &version);
    if (read == ControlSocket::Read::nothing) {
      if (!socket->flush()) return drop_socket(socket, "the connection was reset", Status::would_block);
      return update_interest(socket);
    }
    const bool goes_on = on_read(socket, read, frame, version);
    if (sockets_.count(id) == 0) return;
    if (!goes_on) return drop_socket(socket, "the handshake failed", Status::would_block);
  }
  unread_.push_back(id);  // the socket still buffers frames, which epoll does not report
}

// Returns false if the control socket failed; the caller must then drop it, unless it is dropped already.
bool ControlPlane::on_read(ControlSocket* socket, ControlSocket::Read read, const Frame& frame, std::uint16_t version) {
  const bool ready = socket->state() == ControlSocket::State::ready;
  switch (read) {
    case ControlSocket::Read::frame:
      return on_frame(socket, frame);
    case ControlSocket::Read::nothing:
      return true;
    case ControlSocket::Read::stranger:
      stranger(*socket, "does not use weft's protocol");
      drop_socket(socket, "the process that answers is not weft", Status::refused);
      return false;
    case ControlSocket::Read::version:
      refuse(socket, 0, Status::version_mismatch, version_text(version));
      drop_socket(socket, version_text(version), Status::version_mismatch);
      return false;
    case ControlSocket::Read::damaged:
      stranger(*socket, "sent a damaged frame");
      drop_socket(socket, "a damaged control frame", Status::would_block);
      return false;
    case ControlSocket::Read::plain:
      on_plain_answer(socket, frame);
      return false;
    case ControlSocket::Read::sealed:
      turn_down(socket, Status::authentication_failed, keyring_.tls() == nullptr ? keyring_.tls_problem() : kOneSecret,
                keyring_.tls() == nullptr ? "uses TLS, but this process cannot use TLS"
                                          : "uses TLS (a secret or a handle), but this end connected without TLS");
      return false;
    case ControlSocket::Read::unproved:
      on_unproved(socket);
      return false;
    case ControlSocket::Read::ended:
      drop_socket(socket, ready ? "the control socket was closed" : "the peer closed during the handshake",
                  Status::would_block);
      return false;
  }
  return false;
}

// Refuses a peer that is not allowed to say hello, in plaintext, which both ends understand, and drops its socket.
// `text` is for the peer, `what` for the log of this end.
void ControlPlane::turn_down(ControlSocket* socket, Status status, const std::string& text, const std::string& what) {
  stranger(*socket, what);
  Refuse refusal;
  refusal.status = static_cast<std::uint32_t>(status);
  refusal.text = text;
  if (!socket->dialled()) socket->send_plain(encode(refusal));
  static_cast<void>(socket->flush());
  drop_socket(socket, text, status);
}

// The TLS handshake failed, or the stream was damaged afterwards.
void ControlPlane::on_unproved(ControlSocket* socket) {
  const KeyName proof = socket->proof();
  if (!socket->dialled() && socket->unknown_key()) {
    const bool secret = proof.guard == Guard::secret;
    constexpr Status kFailed = Status::authentication_failed;
    if (secret && !keyring_.has_secret())
      return turn_down(socket, kFailed, kOneSecret, "has WEFT_SECRET_FILE set, but this process does not");
    if (secret) return turn_down(socket, kFailed, kHandlesOnly, kNoHandle);
    return turn_down(socket, Status::refused, kGone, "has a handle of another process");
  }
  const bool ready = socket->state() == ControlSocket::State::ready;
  const char* const why = proof.guard == Guard::key ? kOtherKey : kOtherSecret;
  stranger(*socket, proof.guard == Guard::key ? "has another key or another secret: compare WEFT_SECRET_FILE"
                                              : "has another secret: compare WEFT_SECRET_FILE");
  static_cast<void>(socket->flush());
  drop_socket(socket, why, ready ? Status::would_block : Status::authentication_failed);
}

// The dialled process answers without TLS. Its refusal is not authenticated but is reported anyway: whoever can forge a
// refusal can also make the attempt fail in other ways.
void ControlPlane::on_plain_answer(ControlSocket* socket, const Frame& frame) {
  const bool key = socket->proof().guard == Guard::key;
  std::string why = key ? kPlainAnswer : kOneSecret;
  Refuse refusal;
  Status status = Status::authentication_failed;
  if (frame.type == FrameType::refuse && decode(frame.body, &refusal)) {
    why = socket->peer_address + " refused: " + engine::printable(refusal.text, kRefusalTextMax);
    if (static_cast<Status>(refusal.status) == Status::refused) status = Status::refused;
  }
  drop_socket(socket, why, status);
}

bool ControlPlane::on_frame(ControlSocket* socket, const Frame& frame) {
  const bool ready = socket->state() == ControlSocket::State::ready;
  Session* session = ready ? find_session(socket->session) : nullptr;
  const bool opener = session != nullptr && session->dialled, taker = session != nullptr && !session->dialled;
  switch (frame.type) {
    case FrameType::hello:
      return !ready && !socket->dialled() && on_hello(socket, frame);
    case FrameType::hello_reply:
      return !ready && socket->dialled() && on_hello_reply(socket, frame);
    case FrameType::open:
      return taker && on_open(session, socket, frame);
    case FrameType::open_reply:
      return opener && on_open_reply(session, frame);
    case FrameType::confirm:
      return taker && on_confirm(session, frame);
    case FrameType::refuse:
      return on_refuse(socket, frame);
    case FrameType::ping:
      return ready && on_ping(socket, frame);
    case FrameType::pong:
      return ready && on_pong(socket, frame);
    case FrameType::verdict:
      return ready && on_verdict(socket, frame);
  }
  stranger(*socket, "sent a frame of no known type");
  return false;
}

Hello ControlPlane::hello_of(const Session& session, const ControlSocket& socket) {
  Hello hello;
  hello.node = node_;
  hello.target_node = session.node;
  hello.session = session.token;
  hello.joined = session.remote_token;
  hello.device = session.device;
  hello.engines = static_cast<std::uint16_t>(engines_->size());
  hello.from = socket.local();
  hello.to = socket.remote();
  hello.control = control_address(session.device);
  for (const datapath::Place& place : (*devices_)[session.device].places) hello.addresses.push_back(place.address);
  if (host_ != nullptr) hello.local = host_->name();
  return hello;
}

// If a secret is set, both ends must see the same two addresses on the control socket. This stops a relay that forwards
// a handshake to another holder of the secret, or back to its sender, because the relay has its own addresses.
bool ControlPlane::fits_socket(const ControlSocket& socket, const Hello& theirs) const noexcept {
  return !keyring_.has_secret() || (same_end(theirs.from, socket.remote()) && same_end(theirs.to, socket.local()));
}

// Returns the session that a hello belongs to: an existing one, or a new one. Null if the hello is refused.
Session* ControlPlane::session_for(ControlSocket* socket, const Hello& theirs, std::string* error) {
  for (const auto& [id, session] : sessions_) {
    const bool named = theirs.joined != 0 && session->token == theirs.joined && session->greeted;
    // The peer made several connection attempts in parallel; a slower one belongs to the same session.
    const bool twin = theirs.joined == 0 && !session->dialled && session->node == theirs.node;
    const bool proved = keyring_.has_proved(socket->proof(), *session);
    if ((named || twin) && proved && session->remote_token == theirs.session) return session.get();
  }
  if (theirs.joined != 0) {
    *error = "the session that the hello names has ended; connect again";
    return nullptr;
  }
  constexpr std::size_t kSessionsMax = 8192;
  if (sessions_.size() >= kSessionsMax && !drop_a_stranger(0)) {
    *error = "this process has " + std::to_string(sessions_.size()) + " sessions and accepts no more";
    return nullptr;
  }
  Session* session = add_session(false);
  session->remote_token = theirs.session;
  session->node = theirs.node;
  session->guard = socket->proof().guard;
  session->device = socket->device;
  session->remote_device = theirs.device;
  session->remote_engines = theirs.engines;
  session->local_port = socket->local_port;
  session->name = socket->peer_address;
  session->greeted = true;
  // Without a secret, dial only the address that the peer's own socket comes from; otherwise it could make us dial a
  // third party.
  if (keyring_.has_secret() || same_host(theirs.control, socket->remote())) session->control = theirs.control;
  if (!admit_session(session, socket->remote(), error)) return nullptr;
  return session;
}

bool ControlPlane::on_hello(ControlSocket* socket, const Frame& frame) {
  Hello theirs;
  if (socket->session != 0 || !decode(frame.body, &theirs) || theirs.engines == 0) return false;
  if (socket->turned_away) {
    std::string why;
    const Status trouble = accept_trouble(knobs_->handshake_timeout_ns, &why);
    if (trouble != Status::ok) {
      refuse(socket, 0, trouble, why);
    } else {
      refuse(socket, 0, Status::out_of_descriptors, "the listening process was out of file descriptors; try again");
    }
    return false;
  }
  if (theirs.target_node != 0 && theirs.target_node != node_) {
    refuse(socket, 0, Status::refused, kGone);
    return false;
  }
  if (!keyring_.admits(socket->proof(), theirs)) {
    const bool secret = keyring_.has_secret();
    turn_down(socket, Status::authentication_failed, secret ? kOneSecret : kHandlesOnly,
              secret ? "does not have WEFT_SECRET_FILE set, but this process does" : kNoHandle);
    return false;
  }
  if (!fits_socket(*socket, theirs)) {
    refuse(socket, 0, Status::authentication_failed,
           "a relay or NAT between the two ends changes addresses, which WEFT_SECRET_FILE does not allow");
    return false;
  }
  std::string error;
  Session* session = session_for(socket, theirs, &error);
  if (session == nullptr) {
    refuse(socket, 0, Status::refused, error);
    return false;
  }
  const datapath::SocketAddress from = socket->remote();
  const bool known = std::any_of(session->proved.begin(), session->proved.end(),
                                 [&](const auto& address) { return same_host(address, from); });
  if (!known && session->proved.size() < kAddressesMax) session->proved.push_back(from);
  socket->session = session->id;
  session->busy_ns = engine::now_ns();
  send(socket, encode(FrameType::hello_reply, hello_of(*session, *socket)));
  join(session, socket);
  return true;
}

bool ControlPlane::on_hello_reply(ControlSocket* socket, const Frame& frame) {
  Hello theirs;
  Session* session = find_session(socket->session);
  if (session == nullptr || !decode(frame.body, &theirs) || theirs.engines == 0) return false;
  const bool meant = (session->node == 0 || session->node == theirs.node) && theirs.joined == session->token;
  if (!meant || (session->greeted && session->remote_token != theirs.session)) {
    drop_socket(socket, "another process answers at this address now", Status::refused);
    return false;
  }
  if (!fits_socket(*socket, theirs)) {
    drop_socket(socket, "a relay or NAT between the two ends changes addresses", Status::authentication_failed);
    return false;
  }
  const bool first = !session->greeted;
  if (first) {
    session->greeted = true;
    session->node = theirs.node;
    session->remote_token = theirs.session;
    session->remote_device = theirs.device;
    session->remote_engines = theirs.engines;
    session->local = theirs.local;
    session->control = theirs.control.port() != 0 ? theirs.control : session->target;
    if (theirs.control.is_v6() && IN6_IS_ADDR_LINKLOCAL(&theirs.control.v6.sin6_addr))
      session->control.v6.sin6_scope_id = session->target.v6.sin6_scope_id;
  }
  const bool proves = socket->proves;
  if (first && !keyring_.has_secret()) prove_addresses(session, theirs);  // send_opens() waits for these proofs
  join(session, socket);
  if (proves) {
    drop_socket(socket, "the address is proved", Status::would_block);
    return true;
  }
  send_opens(session);
  return true;
}

// Without a secret, the peer sends data only to addresses from which we have connected to it. Each NIC connects to the
// peer's address to which its paths lead, because on a rail-optimized fabric a NIC reaches no other address.
void ControlPlane::prove_addresses(Session* session, const Hello& theirs) {
  const std::vector<datapath::Place>& places = (*devices_)[session->device].places;
  session->proofs_until_ns = engine::now_ns() + kProofNs;
  for (std::size_t i = 1; i < places.size(); ++i) {
    datapath::SocketAddress to = session->control;
    if (!theirs.addresses.empty()) {
      to = theirs.addresses[i % theirs.addresses.size()];
      to.set_port(session->control.port());
      if (to.is_v6() && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr)) to.v6.sin6_scope_id = places[i].interface_index;
    }
    ControlSocket* proof = dial_socket(session, to, i);
    if (proof == nullptr) continue;
    proof->proves = true;
    ++session->proofs;
  }
}

bool ControlPlane::on_refuse(ControlSocket* socket, const Frame& frame) {
  Refuse refusal;
  if (!decode(frame.body, &refusal)) return false;
  const bool known = refusal.status != 0 && is_status(refusal.status);
  const Status status = known && refusal.status != 1 ? static_cast<Status>(refusal.status) : Status::refused;
  const std::string text = socket->peer_address + " refused: " + engine::printable(refusal.text, kRefusalTextMax);
  const auto accept = accepts_.find({socket->session, refusal.dial});
  if (accept != accepts_.end()) {  // the peer gave up the connection that we had accepted, and will not confirm it
    accept->second.connection->fail(Status::cancelled);
    accepts_.erase(accept);
    forget_open(find_session(socket->session), refusal.dial);
    return true;
  }
  refusal_log_.log(engine::now_ns(), engine::LogLevel::warn, text);
  if (!socket->dialled() && socket->state() != ControlSocket::State::ready) {
    ++counters_.strangers_refused;
    return false;
  }
  if (refusal.dial == 0) {
    drop_socket(socket, text, status);
    return false;
  }
  const auto place = dials_.find(refusal.dial);
  if (place == dials_.end() || place->second.session != socket->session) return true;
  finish_dial(std::shared_ptr<DialState>(place->second.state), status, text);
  return true;
}

bool ControlPlane::on_ping(ControlSocket* socket, const Frame& frame) {
  Ping ping;
  if (!decode(frame.body, &ping)) return false;
  Pong pong;
  pong.number = ping.number;
  const std::int64_t now = engine::now_ns();
  for (const auto& engine : *engines_) {
    const std::int64_t age_ms = std::max<std::int64_t>(now - engine->turn_ns(), 0) / 1'000'000;
    pong.engine_age_ms.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(age_ms, UINT32_MAX)));
    engine->nudge();  // wakes a sleeping engine, so that it runs an iteration before the next ping
  }
  send(socket, encode(pong));
  return true;
}

bool ControlPlane::on_pong(ControlSocket* socket, const Frame& frame) {
  Pong pong;
  Session* session = find_session(socket->session);
  if (session == nullptr || !decode(frame.body, &pong)) return false;
  if (session->ping_ns < 0 || pong.number != session->ping) return true;  // not the answer to the last ping
  session->ping_ns = -1;
  session->pong_ns = engine::now_ns();
  session->engines_turn = std::all_of(pong.engine_age_ms.begin(), pong.engine_age_ms.end(),
                                      [](std::uint32_t age_ms) { return age_ms <= kAgeMsMax; });
  return true;
}

bool ControlPlane::on_verdict(ControlSocket* socket, const Frame& frame) {
  Verdict verdict;
  Session* session = find_session(socket->session);
  if (session == nullptr || !decode(frame.body, &verdict)) return false;
  constexpr std::int64_t kFarewellNs = 20'000'000;  // time to read the peer's last data from our sockets
  constexpr std::uint32_t kWouldBlock = 1;          // Status::would_block, which is not a reason to end a session
  if (verdict.status <= kWouldBlock || !is_status(verdict.status)) {
    session->ends_ns = engine::now_ns() + kFarewellNs;
    return true;
  }
  const auto status = static_cast<Status>(verdict.status);
  // The verdict was made by the peer, so its "peer_stalled" is about this process.
  if (status == Status::peer_stalled) {
    const std::string why =
        "the peer ended the session because this process was stopped for longer than the peer's "
        "WEFT_PEER_TIMEOUT=stall allows";
    end_session(session, Status::connection_closed, why, false);
    return true;
  }
  const std::string why = verdict.text.empty() ? status_text(status) : engine::printable(verdict.text, kRefusalTextMax);
  end_session(session, status, "the peer ended the session: " + why, false);
  return true;
}

}  // namespace weft::control
