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
int begin_connect(const datapath::SocketAddress& to, const datapath::SocketAddress* from) noexcept {
  const int descriptor = datapath::open_socket(to.any.sa_family, SOCK_STREAM);
  if (descriptor < 0) return -1;
  const bool bound = from == nullptr || ::bind(descriptor, &from->any, from->bytes()) == 0;
  if (bound && (::connect(descriptor, &to.any, to.bytes()) == 0 || errno == EINPROGRESS)) return descriptor;
  datapath::close_socket(descriptor);
  return -1;
}

}  // namespace

// Watches a new control socket. Returns null with errno if the kernel cannot; the socket is then closed.
Channel* ControlPlane::watch_channel(std::unique_ptr<Channel> channel) {
  const int descriptor = channel->descriptor();
  epoll_event event{};
  event.events = channel->dialled() ? EPOLLOUT : EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return nullptr;
  set_keepalive(descriptor, knobs_->peer_dead_ns);
  Channel* made = channel.get();
  by_descriptor_[descriptor] = made->id();
  channels_[made->id()] = std::move(channel);
  return made;
}

// Connects a control socket from interface number `place` of the session's device. If interface 0 has no route to the
// peer, the kernel picks the source address.
Channel* ControlPlane::dial_channel(Session* session, const datapath::SocketAddress& to, std::size_t place) {
  const datapath::Place& own = (*devices_)[session->device].places[place];
  datapath::SocketAddress from = own.address;
  from.set_port(0);
  if (from.is_v6() && IN6_IS_ADDR_LINKLOCAL(&from.v6.sin6_addr)) from.v6.sin6_scope_id = own.interface_index;
  int descriptor = from.is_v6() == to.is_v6() ? begin_connect(to, &from) : -1;
  if (descriptor < 0 && place == 0) descriptor = begin_connect(to, nullptr);
  if (descriptor < 0 && errno == EMFILE && engine::raise_descriptor_limit()) descriptor = begin_connect(to, &from);
  Channel* channel = nullptr;
  if (descriptor >= 0) {
    std::unique_ptr<TlsStream> tls = client_for(*session);
    if (tls != nullptr || session->guard == Guard::none) {
      channel = watch_channel(std::make_unique<Channel>(next_channel_++, descriptor, engine::now_ns(), std::move(tls)));
    } else {
      datapath::close_socket(descriptor);
      errno = ENOMEM;
    }
  }
  if (channel == nullptr) {
    const int problem = errno;
    if (place != 0) return nullptr;  // no error: the peer sends no data to this interface's address
    const bool exhausted = engine::is_out_of_descriptors(problem);
    session->last_status = exhausted ? Status::out_of_descriptors : Status::address_unavailable;
    session->last_error = "cannot connect to " + target_of(to) + ": " + std::strerror(problem);
    if (exhausted) session->last_error += "; " + engine::raise_limit_advice();
    return nullptr;
  }
  channel->session = session->id;
  channel->device = session->device;
  channel->peer_address = target_of(to);
  return channel;
}

// A peer that is not authenticated could name any port of its host and have it dialled again and again. So it is
// dialled only after it has answered over a data path, which shows that its process is there.
bool ControlPlane::may_be_dialled(const Session& session, std::int64_t now_ns) {
  if (session.dialled || is_authenticated(session)) return true;
  setup_.count(now_ns, session.id);
  const Holding holding = setup_.holding(session.id);
  return holding.peers > holding.silent_peers;
}

// Starts another connection attempt if no control socket works and no attempt in progress is likely to succeed.
void ControlPlane::need_channel(Session* session, std::int64_t now_ns) {
  if (now_ns < session->attempt_ns || (session->greeted && session->control.port() == 0)) return;
  if (!may_be_dialled(*session, now_ns)) {
    session->attempt_ns = now_ns + kAttemptNs;
    return;
  }
  std::vector<Channel*> connecting;
  for (const auto& [id, channel] : channels_) {
    if (channel->session != session->id || channel->proves) continue;
    if (channel->state() == Channel::State::connecting) {
      connecting.push_back(channel.get());
      continue;
    }
    const Channel::Kernel kernel = channel->kernel(now_ns);
    if (kernel.established && kernel.answers) return;
  }
  session->attempt_ns = now_ns + kAttemptNs;
  const std::uint64_t session_id = session->id;
  // The oldest attempt is the least likely to succeed, because TCP doubles the time between its retries.
  if (connecting.size() >= kAttemptsMax) drop_channel(connecting.front(), "no answer", Status::would_block);
  if (find_session(session_id) == nullptr) return;
  static_cast<void>(dial_channel(session, session->greeted ? session->control : session->target, 0));
}

void ControlPlane::on_connected(Channel* channel) {
  const int problem = channel->connect_error();
  if (problem != 0) {
    const std::string why = std::strerror(problem);
    if (problem == ECONNREFUSED) return drop_channel(channel, why + "; is a listener running there?", Status::refused);
    const bool passes = problem == ETIMEDOUT || problem == ECONNRESET || problem == ECONNABORTED;
    return drop_channel(channel, why, passes ? Status::would_block : Status::address_unavailable);
  }
  Session* session = find_session(channel->session);
  if (session == nullptr) return drop_channel(channel, "its session is over");
  channel->set_state(Channel::State::greeting);
  send(channel, encode(FrameType::hello, hello_of(*session, *channel)));
}

void ControlPlane::update_interest(Channel* channel) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  if (channel->has_output()) event.events |= EPOLLOUT;
  event.data.fd = channel->descriptor();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, channel->descriptor(), &event);
}

// If sending fails, the socket is only shut down: callers still hold a pointer to the channel, so the event loop drops
// it later.
void ControlPlane::send(Channel* channel, const std::string& frame) {
  if (!channel->send(frame) || !channel->flush()) ::shutdown(channel->descriptor(), SHUT_RDWR);
  update_interest(channel);
}

bool ControlPlane::send_to(Session* session, const std::string& frame) {
  const auto place = channels_.find(session->current);
  if (place == channels_.end()) return false;
  send(place->second.get(), frame);
  return true;
}

void ControlPlane::join(Session* session, Channel* channel) {
  channel->set_state(Channel::State::ready);
  channel->session = session->id;
  if (channel->proves) return;
  if (session->ended_ns >= 0) {
    ++counters_.peers_rejoined;
    tell(core::ProcessEvent::Kind::reconnected, *session, session->ended_ns);
  }
  session->current = channel->id();
  if (!session->dialled && !session->confirmed) session->ends_ns = -1;
  session->ended = session->refused = false;
  session->ended_ns = session->ping_ns = -1;
  // Both ends may have opened control sockets. The end that opened the session keeps only the newest one.
  std::vector<Channel*> others;
  for (const auto& [id, each] : channels_) {
    if (session->dialled && each->session == session->id && each.get() != channel && !each->proves) {
      others.push_back(each.get());
    }
  }
  if (!session->dialled) {
    for (const auto& [id, each] : channels_) {
      if (each->session == session->id && each.get() != channel) others.push_back(each.get());
    }
    // The newest kJoinedMax of the older sockets are kept until the peer closes them.
    others.resize(others.size() - std::min(others.size(), kJoinedMax));
  }
  for (Channel* other : others) drop_channel(other, "another control socket took over", Status::would_block);
  session->last_error.clear();
  session->last_status = Status::would_block;
  say_again(session);
}

void ControlPlane::lose_channel(Session* session, bool ended, std::int64_t now_ns) {
  session->current = 0;
  for (const auto& [id, channel] : channels_) {
    const bool joined = channel->session == session->id && channel->state() == Channel::State::ready;
    if (joined && !channel->proves) session->current = id;
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
void ControlPlane::drop_channel(Channel* channel, const std::string& why, Status outcome) {
  if (channel->state() == Channel::State::dead) return;
  const std::uint64_t id = channel->id(), session_id = channel->session;
  const bool proves = channel->proves, was_reset = channel->was_reset(), dialled = channel->dialled();
  const bool turned_away = channel->turned_away;
  const std::string address = channel->peer_address;
  channel->set_state(Channel::State::dead);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, channel->descriptor(), nullptr);
  by_descriptor_.erase(channel->descriptor());
  channels_.erase(id);
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
  if (session->current == id) return lose_channel(session, was_reset, engine::now_ns());
  if (!dialled) return;
  if (session->greeted) {
    session->refused = session->refused || outcome == Status::refused;
  } else if (outcome != Status::would_block) {
    end_session(session, outcome, session->last_error, false);
  }
}

}  // namespace weft::control
