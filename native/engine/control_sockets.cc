// Control sockets: listening, accepting, dialling, dropping.
// Being out of descriptors pauses accepting; it never spins and never loses a waiting peer.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/engine/clock.h"
#include "native/engine/control_plane.h"
#include "native/engine/handle.h"
#include "native/engine/log.h"

namespace weft::engine {
namespace {

constexpr int kBacklog = 512;
constexpr std::int64_t kAcceptPauseNs = 100'000'000;
constexpr std::int64_t kDeathGraceNs = 20'000'000;  // what a dead process sent last is still read

// Silence of the host behind a control socket shows as its death, not only when something is sent.
void set_keepalive(int descriptor, std::int64_t silence_ns) {
  const int on = 1, seconds = static_cast<int>(std::max<std::int64_t>(silence_ns / 4'000'000'000, 1)), tries = 3;
  // Silence is counted from the last answer, which may be one probe's wait older than the silence itself:
  // an idle socket must not be given up before a busy path is.
  const auto timeout_ms = static_cast<unsigned>(silence_ns / 1'000'000) + 1000U * static_cast<unsigned>(seconds);
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string target_of(const datapath::SocketAddress& address) {
  return address.text() + " port " + std::to_string(address.port());
}

}  // namespace

int ControlPlane::open_listening(const datapath::SocketAddress& address, std::string* error) noexcept {
  const int descriptor = ::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (descriptor >= 0) ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (descriptor >= 0 && ::bind(descriptor, &address.any, address.bytes()) == 0 &&
      ::listen(descriptor, kBacklog) == 0) {
    return descriptor;
  }
  const int problem = errno;
  *error = "cannot listen on " + target_of(address) + ": " + std::strerror(problem);
  if (problem == EADDRINUSE) *error += "; choose another port, or 0 for any free one";
  if (problem == EMFILE || problem == ENFILE) *error += "; raise the limit (ulimit -n)";
  if (descriptor >= 0) ::close(descriptor);
  errno = problem;
  return -1;
}

Status ControlPlane::watch_listening(int descriptor, std::string* error) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0 || errno == EEXIST) return Status::ok;
  *error = std::string("epoll_ctl: ") + std::strerror(errno);
  return Status::system_error;
}

// Under the mutex: the socket that handles of a device lead to.
Status ControlPlane::device_socket(std::uint32_t device, int* descriptor, std::string* error) {
  const auto place = device_sockets_.find(device);
  if (place != device_sockets_.end()) {
    *descriptor = place->second;
    return Status::ok;
  }
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  address.set_port(static_cast<std::uint16_t>(knobs_->control_port));
  *descriptor = open_listening(address, error);
  if (*descriptor < 0) {
    return errno == EMFILE || errno == ENFILE ? Status::out_of_descriptors : Status::address_unavailable;
  }
  const Status status = watch_listening(*descriptor, error);
  if (status != Status::ok) {
    ::close(*descriptor);
    return status;
  }
  device_sockets_[device] = *descriptor;
  listening_[*descriptor] = device;
  return Status::ok;
}

namespace {

std::uint16_t port_of(int descriptor) {
  datapath::SocketAddress bound;
  socklen_t length = sizeof bound;
  ::getsockname(descriptor, &bound.any, &length);
  return bound.port();
}

}  // namespace

Status ControlPlane::listen(std::uint32_t device, std::uint16_t port, const PolicySet& policies,
                            std::shared_ptr<ListenerState>* out, std::string* error) {
  auto made = std::make_shared<ListenerState>();
  made->id = random_token();
  made->device = device;
  made->policies = policies;
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  const std::lock_guard<std::mutex> lock(mutex_);
  Status status = Status::ok;
  if (port == 0) {
    int shared = -1;
    status = device_socket(device, &shared, error);
    if (status == Status::ok) address.set_port(port_of(shared));
    // The knob's port belongs to the first listener; the others get one of their own when they ask for it.
    const bool taken = std::any_of(listeners_.begin(), listeners_.end(), [&](const auto& known) {
      return known.second->device == device && known.second->port == address.port();
    });
    if (knobs_->control_port != 0 && !taken) made->port = address.port();
  } else {
    status = open_port(made.get(), port, error);
    address.set_port(made->port);
  }
  if (status != Status::ok) return status;
  write_handle({node_, made->id, device, address}, &made->handle);
  listeners_[made->id] = made;
  *out = std::move(made);
  return Status::ok;
}

// Under the mutex. On every address: whoever knows the port may dial any of them.
Status ControlPlane::open_port(ListenerState* listener, std::uint16_t port, std::string* error) {
  datapath::SocketAddress address;
  address.any.sa_family = (*devices_)[listener->device].places[0].address.is_v6() ? AF_INET6 : AF_INET;
  address.set_port(port);
  const int descriptor = open_listening(address, error);
  if (descriptor < 0) {
    return errno == EMFILE || errno == ENFILE ? Status::out_of_descriptors : Status::address_unavailable;
  }
  const Status status = watch_listening(descriptor, error);
  if (status != Status::ok) {
    ::close(descriptor);
    return status;
  }
  listening_[descriptor] = listener->device;
  listener->descriptor = descriptor;
  listener->port = port_of(descriptor);
  return Status::ok;
}

std::uint16_t ControlPlane::own_port(const std::shared_ptr<ListenerState>& listener) noexcept {
  try {
    std::string error;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (listener->port == 0 && open_port(listener.get(), 0, &error) != Status::ok) log(LogLevel::warn, error);
    return listener->port;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// By name, or whoever has the port now that the channel was accepted on.
std::shared_ptr<ListenerState> ControlPlane::listener_for(const Channel& channel, std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (id != 0) {
    const auto place = listeners_.find(id);
    return place == listeners_.end() ? nullptr : place->second;
  }
  for (const auto& [known, listener] : listeners_) {
    if (listener->port == channel.local_port) return listener;
  }
  return nullptr;
}

void ControlPlane::close_listener(const std::shared_ptr<ListenerState>& listener) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    listeners_.erase(listener->id);
    if (listener->descriptor >= 0) {
      listening_.erase(listener->descriptor);
      ::close(listener->descriptor);  // leaves the epoll by itself
      listener->descriptor = -1;
    }
  }
  std::list<std::shared_ptr<ConnectionCore>> unclaimed;
  {
    const std::lock_guard<std::mutex> lock(listener->mutex);
    listener->closed = true;
    unclaimed.swap(listener->ready);
  }
  for (const auto& connection : unclaimed) connection->fail(Status::connection_closed);
}

// The mutex is held throughout, so that the descriptor stays this listener's.
void ControlPlane::accept_all(int listening) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = listening_.find(listening);
  if (place == listening_.end()) return;
  for (;;) {
    datapath::SocketAddress from;
    socklen_t length = sizeof from;
    const int descriptor = ::accept4(listening, &from.any, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0) {
      Channel* channel = add_channel(descriptor, false);
      channel->device = place->second;
      channel->local_port = port_of(listening);
      channel->peer_address = target_of(from);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) pause_accepting();
    return;
  }
}

// Level-triggered, the sockets would be reported again and again: all are left alone for a while.
void ControlPlane::pause_accepting() {
  if (accept_again_ns_ != 0) return;
  log(LogLevel::warn, "out of file descriptors: peers wait to be accepted; raise the limit (ulimit -n)");
  for (const auto& [descriptor, device] : listening_) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  accept_again_ns_ = now_ns() + kAcceptPauseNs;
}

Channel* ControlPlane::add_channel(int descriptor, bool dialled) {
  set_keepalive(descriptor, knobs_->peer_silence_ns);
  auto channel =
      std::make_unique<Channel>(next_channel_++, descriptor, dialled, now_ns() + knobs_->handshake_timeout_ns);
  channel->mine.node = node_;
  channel->mine.has_secret = !secret_.empty();
  channel->mine.engines = static_cast<std::uint16_t>(engines_->size());
  for (std::size_t i = 0; i < channel->mine.nonce.size(); i += 8) {
    const std::uint64_t word = random_token();
    std::memcpy(channel->mine.nonce.data() + i, &word, 8);
  }
  Channel* made = channel.get();
  by_descriptor_[descriptor] = made->id();
  channels_[made->id()] = std::move(channel);
  epoll_event event{};
  event.events = dialled ? EPOLLOUT : EPOLLIN;
  event.data.fd = descriptor;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
  return made;
}

void ControlPlane::update_interest(Channel* channel) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  if (channel->has_output()) event.events |= EPOLLOUT;
  event.data.fd = channel->descriptor();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, channel->descriptor(), &event);
}

Channel* ControlPlane::channel_to(const DialState& dial, std::string* error) {
  const std::string target = target_of(dial.to);
  const auto place = by_target_.find(target);
  if (place != by_target_.end()) return channels_.at(place->second).get();
  const int descriptor = ::socket(dial.to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0 || (::connect(descriptor, &dial.to.any, dial.to.bytes()) != 0 && errno != EINPROGRESS)) {
    *error = "cannot connect to " + target + ": " + std::strerror(errno);
    if (errno == EMFILE) *error += "; raise the limit (ulimit -n)";
    if (descriptor >= 0) ::close(descriptor);
    return nullptr;
  }
  Channel* channel = add_channel(descriptor, true);
  channel->peer_address = target;
  by_target_[target] = channel->id();
  return channel;
}

void ControlPlane::drop_channel(Channel* channel, const std::string& why, Status outcome) {
  if (channel->state() == Channel::State::dead) return;
  const bool was_ready = channel->state() == Channel::State::ready;
  channel->set_state(Channel::State::dead);
  std::vector<std::shared_ptr<DialState>> waiting;
  for (const auto& [id, pending] : dials_) {
    if (pending.channel == channel->id()) waiting.push_back(pending.state);
  }
  for (const auto& dial : waiting) {
    finish_dial(dial, was_ready ? Status::peer_dead : outcome, channel->peer_address + ": " + why);
  }
  for (auto place = accepts_.begin(); place != accepts_.end();) {
    if (place->first.first != channel->id()) {
      ++place;
      continue;
    }
    place->second.connection->fail(Status::peer_dead);
    place = accepts_.erase(place);
  }
  if (was_ready) deaths_.push_back({now_ns() + kDeathGraceNs, channel->id()});
  for (auto place = by_target_.begin(); place != by_target_.end();) {
    place = place->second == channel->id() ? by_target_.erase(place) : std::next(place);
  }
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, channel->descriptor(), nullptr);
  by_descriptor_.erase(channel->descriptor());
  channels_.erase(channel->id());
}

}  // namespace weft::engine
