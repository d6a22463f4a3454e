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
  const auto timeout_ms = static_cast<unsigned>(silence_ns / 1'000'000);
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

Status ControlPlane::device_socket(std::uint32_t device, int* descriptor, std::string* error) {
  const auto place = device_sockets_.find(device);
  if (place != device_sockets_.end()) {
    *descriptor = place->second;
    return Status::ok;
  }
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  address.set_port(static_cast<std::uint16_t>(knobs_->control_port));
  *descriptor = open_listening(address, error);
  if (*descriptor < 0)
    return errno == EMFILE || errno == ENFILE ? Status::out_of_descriptors : Status::address_unavailable;
  device_sockets_[device] = *descriptor;
  listening_[*descriptor] = {0, device};
  return Status::ok;
}

Status ControlPlane::listen(std::uint32_t device, std::uint16_t port, std::shared_ptr<ListenerState>* out,
                            std::string* error) {
  auto made = std::make_shared<ListenerState>();
  made->id = random_token();
  made->device = device;
  const std::lock_guard<std::mutex> lock(mutex_);
  int descriptor = -1;
  if (port == 0 && knobs_->control_port == 0) {
    const Status status = device_socket(device, &descriptor, error);
    if (status != Status::ok) return status;
  }
  if (descriptor < 0) {
    // A port of its own, on every address: whoever knows the port may dial any of them.
    datapath::SocketAddress address;
    const bool v6 = (*devices_)[device].places[0].address.is_v6();
    address.any.sa_family = v6 ? AF_INET6 : AF_INET;
    address.set_port(port != 0 ? port : static_cast<std::uint16_t>(knobs_->control_port));
    descriptor = made->descriptor = open_listening(address, error);
    if (descriptor < 0)
      return errno == EMFILE || errno == ENFILE ? Status::out_of_descriptors : Status::address_unavailable;
    listening_[descriptor] = {made->id, device};
  } else if (listening_[descriptor].first == 0) {
    listening_[descriptor].first = made->id;
  }
  datapath::SocketAddress bound;
  socklen_t length = sizeof bound;
  ::getsockname(descriptor, &bound.any, &length);
  made->port = bound.port();
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  address.set_port(made->port);
  write_handle({node_, made->id, device, address}, &made->handle);
  listeners_[made->id] = made;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0 && errno != EEXIST) {
    *error = std::string("epoll_ctl: ") + std::strerror(errno);
    return Status::system_error;
  }
  *out = std::move(made);
  return Status::ok;
}

void ControlPlane::close_listener(const std::shared_ptr<ListenerState>& listener) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    listeners_.erase(listener->id);
    for (auto place = listening_.begin(); place != listening_.end();) {
      if (place->second.first != listener->id) {
        ++place;
      } else if (place->first == listener->descriptor) {
        ::epoll_ctl(epoll_, EPOLL_CTL_DEL, place->first, nullptr);
        ::close(place->first);
        place = listening_.erase(place);
      } else {
        (place++)->second.first = 0;
      }
    }
  }
  std::deque<std::shared_ptr<ConnectionCore>> unclaimed;
  {
    const std::lock_guard<std::mutex> lock(listener->mutex);
    listener->closed = true;
    unclaimed.swap(listener->ready);
  }
  for (const auto& connection : unclaimed) connection->fail(Status::connection_closed);
}

void ControlPlane::accept_all(int listening) {
  for (;;) {
    datapath::SocketAddress from;
    socklen_t length = sizeof from;
    const int descriptor = ::accept4(listening, &from.any, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // Level-triggered: it would report this socket again and again. Leave it alone for a while.
        if (accept_again_ns_ == 0) {
          log(LogLevel::warn, "out of file descriptors: peers wait to be accepted; raise the limit (ulimit -n)");
          ::epoll_ctl(epoll_, EPOLL_CTL_DEL, listening, nullptr);
        }
        accept_again_ns_ = now_ns() + kAcceptPauseNs;
        return;
      }
      break;
    }
    Channel* channel = add_channel(descriptor, false);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = listening_.find(listening);
    if (place != listening_.end()) {
      channel->listener = place->second.first;
      channel->device = place->second.second;
    }
    channel->peer_address = target_of(from);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listening;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, listening, &event);  // back after a pause; harmless when it never left
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
  if (was_ready) deaths_.push_back({now_ns() + kDeathGraceNs, channel->theirs.node});
  for (auto place = by_target_.begin(); place != by_target_.end();) {
    place = place->second == channel->id() ? by_target_.erase(place) : std::next(place);
  }
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, channel->descriptor(), nullptr);
  by_descriptor_.erase(channel->descriptor());
  channels_.erase(channel->id());
}

}  // namespace weft::engine
