// Dials control sockets, joins them to their sessions, and handles their loss. A session that has lost its last control
// socket dials again from a fresh port every quarter of a second, so that an attempt eventually hashes onto a working
// path.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "native/control/control_plane.h"
#include "native/datapath/fork_registry.h"
#include "native/engine/clock.h"
#include "native/engine/log.h"
#include "native/engine/setup/descriptor_budget.h"

namespace weft::control {
namespace {

constexpr std::int64_t kAttemptNs = 250'000'000;
constexpr std::int64_t kRejoinNs = 2'000'000'000;  // time that an unconfirmed session waits for a new control socket
constexpr std::size_t kAttemptsMax = 8;            // simultaneous connection attempts of one session
// How many older control sockets a session that the peer opened keeps: several attempts of the peer may succeed.
constexpr std::size_t kJoinedMax = 16;

// Turns on TCP keepalives; if the peer's host answers none for `dead_ns`, the kernel ends the connection.
void set_keepalive(int descriptor, std::int64_t dead_ns) noexcept {
  const int on = 1, interval_s = 1, tries = 127;
  const int idle_s = static_cast<int>(std::clamp<std::int64_t>(dead_ns / 4'000'000'000, 1, 3600));
  const auto timeout_ms = static_cast<unsigned>(dead_ns / 1'000'000);
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Returns a socket that is connecting to `to`, bound to the address `from` if one is given; -1 on failure.
int begin_connect(const datapath::SocketAddress& to, const datapath::SocketAddress* from, std::int64_t dscp) noexcept {
  const int descriptor = datapath::open_socket(to.any.sa_family, SOCK_STREAM);
  if (descriptor < 0) return -1;
  set_dscp(descriptor, dscp, to.is_v6());
  const bool bound = from == nullptr || ::bind(descriptor, &from->any, from->bytes()) == 0;
  if (bound && (::connect(descriptor, &to.any, to.bytes()) == 0 || errno == EINPROGRESS)) return descriptor;
  datapath::close_socket(descriptor);
  return -1;
}

}  // namespace

// Watches a new control socket. Returns null with errno if the kernel cannot; the socket is then closed.
ControlSocket* ControlPlane::watch_socket(std::unique_ptr<ControlSocket> socket) {
  const int descriptor = socket->descriptor();
  epoll_event event{};
  event.events = socket->interest = socket->dialled() ? EPOLLOUT : EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return nullptr;
  set_keepalive(descriptor, knobs_->peer_dead_ns);
  ControlSocket* made = socket.get();
  by_descriptor_[descriptor] = made->id();
  sockets_[made->id()] = std::move(socket);
  return made;
}

// Connects a control socket from interface number `place` of the session's device. If interface 0 has no route to the
// peer, the kernel picks the source address.
ControlSocket* ControlPlane::dial_socket(Session* session, const datapath::SocketAddress& to, std::size_t place) {
  const datapath::Place& own = (*devices_)[session->device].places[place];
  datapath::SocketAddress from = own.address;
  from.set_port(0);
  if (from.is_v6() && IN6_IS_ADDR_LINKLOCAL(&from.v6.sin6_addr)) from.v6.sin6_scope_id = own.interface_index;
  const std::int64_t dscp = knobs_->dscp;
  int descriptor = from.is_v6() == to.is_v6() ? begin_connect(to, &from, dscp) : -1;
  if (descriptor < 0 && place == 0) descriptor = begin_connect(to, nullptr, dscp);
  if (descriptor < 0 && errno == EMFILE && engine::raise_descriptor_limit()) {
    descriptor = begin_connect(to, &from, dscp);
  }
  ControlSocket* socket = nullptr;
  if (descriptor >= 0) {
    std::unique_ptr<TlsStream> tls = keyring_.client_for(*session);
    if (tls != nullptr || session->guard == Guard::none) {
      socket =
          watch_socket(std::make_unique<ControlSocket>(next_socket_++, descriptor, engine::now_ns(), std::move(tls)));
    } else {
      datapath::close_socket(descriptor);
      errno = ENOMEM;
    }
  }
  if (socket == nullptr) {
    const int problem = errno;
    if (place != 0) return nullptr;  // no error: the peer sends no data to this interface's address
    const bool exhausted = engine::is_out_of_descriptors(problem);
    session->last_status = exhausted ? Status::out_of_descriptors : Status::address_unavailable;
    session->last_error = target_of(to) + ": " + std::strerror(problem);
    if (exhausted) session->last_error += "; " + engine::raise_limit_advice();
    return nullptr;
  }
  socket->session = session->id;
  socket->device = session->device;
  socket->peer_address = target_of(to);
  return socket;
}

// A peer that is not authenticated could name any port of its host and have it dialled again and again. So it is
// dialled only after it has answered over a data path, which shows that its process is there.
bool ControlPlane::may_be_dialled(const Session& session, std::int64_t now_ns) {
  if (session.dialled || session.is_authenticated()) return true;
  setup_.count(now_ns, session.id);
  const Holding holding = setup_.holding(session.id);
  return holding.peers > holding.silent_peers;
}

// Starts another connection attempt if no control socket works and no attempt in progress is likely to succeed.
void ControlPlane::need_socket(Session* session, std::int64_t now_ns) {
  if (now_ns < session->attempt_ns || (session->greeted && session->control.port() == 0)) return;
  if (!may_be_dialled(*session, now_ns)) {
    session->attempt_ns = now_ns + kAttemptNs;
    return;
  }
  std::vector<ControlSocket*> connecting;
  for (const auto& [id, socket] : sockets_) {
    if (socket->session != session->id || socket->proves) continue;
    if (socket->state() == ControlSocket::State::connecting) {
      connecting.push_back(socket.get());
      continue;
    }
    const ControlSocket::Kernel kernel = socket->kernel(now_ns);
    if (kernel.established && kernel.answers) return;
  }
  session->attempt_ns = now_ns + kAttemptNs;
  const std::uint64_t session_id = session->id;
  // The oldest attempt is the least likely to succeed, because TCP doubles the time between its retries.
  if (connecting.size() >= kAttemptsMax) drop_socket(connecting.front(), "no answer", Status::would_block);
  if (find_session(session_id) == nullptr) return;
  static_cast<void>(dial_socket(session, session->greeted ? session->control : session->target, 0));
}

void ControlPlane::on_connected(ControlSocket* socket) {
  const int problem = socket->connect_error();
  if (problem != 0) {
    const std::string why = std::strerror(problem);
    if (problem == ECONNREFUSED) return drop_socket(socket, why + "; is a listener running there?", Status::refused);
    const bool passes = problem == ETIMEDOUT || problem == ECONNRESET || problem == ECONNABORTED;
    return drop_socket(socket, why, passes ? Status::would_block : Status::address_unavailable);
  }
  Session* session = find_session(socket->session);
  if (session == nullptr) return drop_socket(socket, "its session is over");
  socket->set_state(ControlSocket::State::greeting);
  send(socket, encode(FrameType::hello, hello_of(*session, *socket)));
}

void ControlPlane::update_interest(ControlSocket* socket) noexcept {
  const std::uint32_t interest = EPOLLIN | (socket->has_output() ? EPOLLOUT : 0u);
  if (std::exchange(socket->interest, interest) == interest) return;
  epoll_event event{};
  event.events = interest;
  event.data.fd = socket->descriptor();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket->descriptor(), &event);
}

// If sending fails, the socket is only shut down: callers still hold a pointer to the socket, so the event loop drops
// it later.
void ControlPlane::send(ControlSocket* socket, const std::string& frame) {
  if (!socket->send(frame) || !socket->flush()) ::shutdown(socket->descriptor(), SHUT_RDWR);
  update_interest(socket);
}

bool ControlPlane::send_to(Session* session, const std::string& frame) {
  const auto place = sockets_.find(session->current);
  if (place == sockets_.end()) return false;
  send(place->second.get(), frame);
  return true;
}

void ControlPlane::join(Session* session, ControlSocket* socket) {
  socket->set_state(ControlSocket::State::ready);
  socket->session = session->id;
  if (socket->proves) return;
  if (session->ended_ns >= 0) {
    ++counters_.peers_rejoined;
    tell(core::ProcessEvent::Kind::reconnected, *session, session->ended_ns);
  }
  session->current = socket->id();
  if (!session->dialled && !session->confirmed) session->ends_ns = -1;
  session->ended = session->refused = false;
  session->ended_ns = session->ping_ns = -1;
  // Both ends may have opened control sockets. The end that opened the session keeps only the newest one.
  std::vector<ControlSocket*> others;
  for (const auto& [id, each] : sockets_) {
    if (session->dialled && each->session == session->id && each.get() != socket && !each->proves) {
      others.push_back(each.get());
    }
  }
  if (!session->dialled) {
    for (const auto& [id, each] : sockets_) {
      if (each->session == session->id && each.get() != socket) others.push_back(each.get());
    }
    // The newest kJoinedMax of the older sockets are kept until the peer closes them.
    others.resize(others.size() - std::min(others.size(), kJoinedMax));
  }
  for (ControlSocket* other : others) drop_socket(other, "another control socket took over", Status::would_block);
  session->last_error.clear();
  session->last_status = Status::would_block;
  say_again(session);
}

void ControlPlane::lose_socket(Session* session, bool ended, std::int64_t now_ns) {
  session->current = 0;
  for (const auto& [id, socket] : sockets_) {
    const bool joined = socket->session == session->id && socket->state() == ControlSocket::State::ready;
    if (joined && !socket->proves) session->current = id;
  }
  session->ping_ns = -1;
  if (session->current != 0) return;
  // A session without a confirmed connection ends now. If this end has accepted a connection of the peer, the session
  // ends only after kRejoinNs, because the peer may have confirmed it and will then reconnect.
  if (!session->dialled && !session->confirmed) {
    const auto opens = accepts_.lower_bound({session->id, 0});
    const bool opening = opens != accepts_.end() && opens->first.first == session->id;
    session->ends_ns = opening ? now_ns + kRejoinNs : now_ns;
    return;
  }
  session->ended = ended;
  session->refused = false;
  session->ended_ns = session->attempt_ns = now_ns;
  session->pong_ns = -1;
  examine(session, now_ns);
}

// `outcome`: the status given to dials that wait for a hello on this socket; would_block if another connection attempt
// may still succeed.
void ControlPlane::drop_socket(ControlSocket* socket, const std::string& why, Status outcome) {
  if (socket->state() == ControlSocket::State::dead) return;
  const std::uint64_t id = socket->id(), session_id = socket->session;
  const bool proves = socket->proves, was_reset = socket->was_reset(), dialled = socket->dialled();
  const bool turned_away = socket->turned_away;
  const std::string address = socket->peer_address;
  socket->set_state(ControlSocket::State::dead);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket->descriptor(), nullptr);
  by_descriptor_.erase(socket->descriptor());
  sockets_.erase(id);
  if (turned_away) accept_gate_.open_spare();

  Session* session = find_session(session_id);
  if (session == nullptr) return;
  if (!proves) {
    session->last_error = why.rfind(address, 0) == 0 ? why : address + ": " + why;
    session->last_status = outcome;
  }
  if (proves) {
    if (session->proofs != 0 && --session->proofs == 0) send_opens(session);
    return;
  }
  if (session->current == id) return lose_socket(session, was_reset, engine::now_ns());
  if (!dialled) return;
  if (session->greeted) {
    session->refused = session->refused || outcome == Status::refused;
  } else if (outcome != Status::would_block) {
    end_session(session, outcome, session->last_error, false);
  }
}

}  // namespace weft::control
