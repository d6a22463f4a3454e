// Uses Unix sockets of type SOCK_SEQPACKET, which keep packets whole and in order. They have abstract names, which the
// kernel removes when the process ends for whatever reason. A sender notices when the receiver's buffer is full. Only
// wait() blocks.
#include "tests/softverbs/native/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace weft::softverbs {
namespace {

constexpr int kBacklog = 256;
constexpr int kBufferBytes = 1 << 20;          // size of a socket buffer; the kernel may grant less
constexpr std::int64_t kRetryNs = 20'000'000;  // waiting time before the next connect to a host that refused
constexpr std::uint8_t kPrefix[7] = {0xFD, 's', 'o', 'f', 't', 'v', 0};  // prefix of a unique local IPv6 address

socklen_t name_of(std::uint64_t host, sockaddr_un* out) noexcept {
  *out = {};
  out->sun_family = AF_UNIX;
  // The name's first byte stays zero, which makes it an abstract name.
  const int length = std::snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "weft-softverbs-%016llx",
                                   static_cast<unsigned long long>(host));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
}

// Whether the other end belongs to the same user. Other users are refused, because the other process may write to this
// one's memory.
bool is_ours(int socket) noexcept {
  ucred who{};
  socklen_t bytes = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == ::geteuid();
}

bool watch(int epoll, int descriptor, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void close_one(int* descriptor) noexcept {
  if (*descriptor >= 0) ::close(*descriptor);
  *descriptor = -1;
}

}  // namespace

ibv_gid gid_of(std::uint64_t host, std::uint32_t device) noexcept {
  ibv_gid gid{};
  std::memcpy(gid.raw, kPrefix, sizeof kPrefix);
  gid.raw[7] = static_cast<std::uint8_t>(device);
  std::memcpy(gid.raw + 8, &host, sizeof host);
  return gid;
}

std::uint64_t host_of(const ibv_gid& gid) noexcept {
  std::uint64_t host = 0;
  std::memcpy(&host, gid.raw + 8, sizeof host);
  return host;
}

std::uint32_t device_of(const ibv_gid& gid) noexcept { return gid.raw[7]; }

bool Link::open(std::string* error) {
  sockaddr_un name{};
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  bell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool drawn = ::getrandom(&host_, sizeof host_, 0) == sizeof host_;
  const socklen_t bytes = name_of(host_, &name);
  if (drawn && epoll_ >= 0 && bell_ >= 0 && listener_ >= 0 &&
      ::bind(listener_, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 && ::listen(listener_, kBacklog) == 0 &&
      watch(epoll_, bell_, EPOLLIN) && watch(epoll_, listener_, EPOLLIN)) {
    return true;
  }
  *error = std::string("softverbs cannot open its sockets: ") + std::strerror(errno);
  close();
  return false;
}

void Link::close() noexcept {
  for (auto& [host, peer] : peers_) close_one(&peer.socket);
  for (int& source : sources_) close_one(&source);
  peers_.clear();
  sources_.clear();
  close_one(&listener_);
  close_one(&bell_);
  close_one(&epoll_);
}

bool Link::reach(std::int64_t now_ns, std::uint64_t host, Peer* peer) noexcept {
  if (peer->socket >= 0) return true;
  if (now_ns < peer->retry_ns) return false;
  peer->retry_ns = now_ns + kRetryNs;
  sockaddr_un name{};
  const socklen_t bytes = name_of(host, &name);
  int made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return false;
  static_cast<void>(::setsockopt(made, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes));
  if (::connect(made, reinterpret_cast<const sockaddr*>(&name), bytes) != 0 || !is_ours(made) ||
      !watch(epoll_, made, EPOLLONESHOT)) {
    close_one(&made);
    return false;
  }
  peer->socket = made;
  return true;
}

// Watches for room at a peer. The event is one-shot, so that a peer which stays full, or is gone, does not wake the
// thread again and again.
void Link::ask_for_room(const Peer& peer) noexcept {
  epoll_event event{};
  event.events = static_cast<std::uint32_t>(EPOLLOUT) | static_cast<std::uint32_t>(EPOLLONESHOT);
  static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.socket, &event));
}

Link::Sent Link::send(std::int64_t now_ns, const Packet& packet, const std::uint8_t* payload) noexcept {
  const std::uint64_t host = host_of(packet.destination);
  Peer& peer = peers_[host];
  if (!reach(now_ns, host, &peer)) return Sent::lost;
  iovec parts[2] = {{const_cast<Packet*>(&packet), sizeof packet}, {const_cast<std::uint8_t*>(payload), packet.bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = packet.bytes == 0 ? 1 : 2;
  if (::sendmsg(peer.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sent::taken;
  if (errno == EAGAIN || errno == ENOBUFS) {
    ask_for_room(peer);
    return Sent::full;
  }
  close_one(&peer.socket);
  peer.retry_ns = now_ns + kRetryNs;
  return Sent::lost;
}

bool Link::accept_all() noexcept {
  for (const std::size_t known = sources_.size();;) {
    int made = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0) return sources_.size() > known;
    if (is_ours(made) && watch(epoll_, made, EPOLLIN)) {
      sources_.push_back(made);
    } else {
      close_one(&made);
    }
  }
}

bool Link::receive(Packet* packet, std::uint8_t* payload) noexcept {
  return take(packet, payload) || (accept_all() && take(packet, payload));
}

bool Link::take(Packet* packet, std::uint8_t* payload) noexcept {
  for (std::size_t tried = 0; tried < sources_.size();) {
    turn_ = turn_ + 1 < sources_.size() ? turn_ + 1 : 0;
    iovec parts[2] = {{packet, sizeof *packet}, {payload, kMtuBytesMax}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t got = ::recvmsg(sources_[turn_], &message, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {  // the sending process has ended
      ::close(sources_[turn_]);
      sources_.erase(sources_.begin() + static_cast<std::ptrdiff_t>(turn_));
      continue;
    }
    ++tried;
    if (got < static_cast<ssize_t>(sizeof *packet) || packet->magic != kMagic) continue;
    if (static_cast<std::size_t>(got) == sizeof *packet + packet->bytes) return true;
  }
  return false;
}

void Link::wait(std::int64_t timeout_ns) noexcept {
  pollfd descriptor{epoll_, POLLIN, 0};
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  static_cast<void>(::ppoll(&descriptor, 1, timeout_ns < 0 ? nullptr : &timeout, nullptr));
  epoll_event seen[16];
  static_cast<void>(::epoll_wait(epoll_, seen, 16, 0));  // fetches one-shot events, so that they are reported only once
  std::uint64_t rung = 0;
  static_cast<void>(!::read(bell_, &rung, sizeof rung));
}

void Link::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(bell_, &one, sizeof one));
}

}  // namespace weft::softverbs
