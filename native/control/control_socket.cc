// Sends and receives the frames of one control socket. Input received before the end of the stream is still returned.
// At most a few kilobytes of input are buffered before the hello, and at most two frames after it; the rest stays in
// the kernel.
#include "native/control/control_socket.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "native/datapath/fork_registry.h"

namespace weft::control {
namespace {

constexpr std::size_t kGreetingBytesMax = 4096;
constexpr std::size_t kOutputBytesMax = 4 << 20;  // limit of unsent output; enough to open many connections at once
// The first byte of a TLS stream is the type of its first record (RFC 8446, section 5.1).
constexpr char kTlsRecordMin = 0x14, kTlsRecordMax = 0x17;
// Consecutive retransmissions or probes after which the route to the peer counts as cut.
constexpr unsigned kUnansweredMax = 2;
// Offset of tcpi_min_rtt (microseconds) in the kernel's tcp_info (linux/tcp.h); the C library's struct is shorter.
constexpr std::size_t kMinRttOffset = 148;

bool begins_tls(char first) noexcept { return first >= kTlsRecordMin && first <= kTlsRecordMax; }

datapath::SocketAddress end_of(int descriptor, int (*ask)(int, sockaddr*, socklen_t*)) noexcept {
  datapath::SocketAddress found;
  socklen_t length = sizeof found;
  if (ask(descriptor, &found.any, &length) != 0) return datapath::SocketAddress();
  return found;
}

int ask_local(int descriptor, sockaddr* address, socklen_t* length) {
  return ::getsockname(descriptor, address, length);
}
int ask_remote(int descriptor, sockaddr* address, socklen_t* length) {
  return ::getpeername(descriptor, address, length);
}

}  // namespace

ControlSocket::ControlSocket(std::uint64_t id, int descriptor, std::int64_t now_ns,
                             std::unique_ptr<TlsStream> tls) noexcept
    : id_(id),
      descriptor_(descriptor),
      dialled_(true),
      since_ns_(now_ns),
      state_(State::connecting),
      tls_(std::move(tls)) {}

ControlSocket::ControlSocket(std::uint64_t id, int descriptor, std::int64_t now_ns, const TlsServer& server) noexcept
    : id_(id), descriptor_(descriptor), dialled_(false), since_ns_(now_ns), state_(State::greeting), server_(server) {}

ControlSocket::~ControlSocket() { datapath::close_socket(descriptor_); }

KeyName ControlSocket::proof() const noexcept {
  KeyName name;
  if (tls_ != nullptr) static_cast<void>(decode(tls_->identity(), &name));
  return name;
}

bool ControlSocket::send(const std::string& frame) {
  if (tls_ != nullptr) {
    if (!tls_->send(frame)) return false;
    tls_->take_output(&out_);
  } else {
    out_ += frame;
  }
  return out_.size() <= kOutputBytesMax;
}

// If TLS output cannot be stored, the stream would have a gap, so the socket counts as failed.
bool ControlSocket::flush() noexcept {
  try {
    if (tls_ != nullptr && !tls_->unknown_key()) tls_->take_output(&out_);
  } catch (const std::bad_alloc&) {
    return false;
  }
  std::size_t sent_bytes = 0;
  bool alive = true;
  while (sent_bytes < out_.size()) {
    const ssize_t sent =
        ::send(descriptor_, out_.data() + sent_bytes, out_.size() - sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      sent_bytes += static_cast<std::size_t>(sent);
    } else if (errno != EINTR) {
      timed_out_ = errno == ETIMEDOUT;
      alive = errno == EAGAIN || errno == EWOULDBLOCK;
      break;
    }
  }
  out_.erase(0, sent_bytes);
  return alive;
}

// Reads once from the socket. Returns false if there is nothing to read now, the buffer is full, or the stream ended.
bool ControlSocket::receive() noexcept {
  char buffer[16384];
  const std::size_t limit = state_ == State::ready ? 2 * kFrameBodyMax : kGreetingBytesMax;
  if (ended_ || unproved_ || in_.size() >= limit) return false;
  const std::size_t most = std::min(sizeof buffer, limit - in_.size());
  const ssize_t got = ::recv(descriptor_, buffer, most, MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) {
    ended_ = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    timed_out_ = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
    return false;
  }
  if (received_bytes_ == 0) first_byte_ = buffer[0];
  received_bytes_ += static_cast<std::size_t>(got);
  try {
    ended_ = !take(buffer, static_cast<std::size_t>(got));
  } catch (const std::bad_alloc&) {
    ended_ = true;
  }
  return !ended_;
}

// Takes input from the socket. Its first byte shows whether the peer uses TLS; without TLS, input is plaintext. Returns
// false if memory runs out.
bool ControlSocket::take(const char* data, std::size_t bytes) {
  if (tls_ == nullptr && server_.context != nullptr && begins_tls(first_byte_)) {
    tls_ = TlsStream::make_server(*server_.context, server_.keys);
    if (tls_ == nullptr) return false;
  }
  if (tls_ == nullptr || !begins_tls(first_byte_)) {
    in_.append(data, bytes);
    return true;
  }
  unproved_ = !tls_->on_received(data, bytes, &in_);
  // A peer whose key is unknown gets a refusal that it can read, instead of OpenSSL's alert.
  if (!tls_->unknown_key()) tls_->take_output(&out_);
  return true;
}

ControlSocket::Read ControlSocket::poll(Frame* out, std::uint16_t* version) {
  while (receive()) {
  }
  if (unproved_) return Read::unproved;
  if (received_bytes_ != 0 && tls_ == nullptr && begins_tls(first_byte_)) return Read::sealed;
  const bool plain = tls_ != nullptr && received_bytes_ != 0 && !begins_tls(first_byte_);
  if (!in_.empty()) {
    switch (take_frame(&in_, out, version)) {
      case Take::frame:
        return plain ? Read::plain : Read::frame;
      case Take::stranger:
        return Read::stranger;
      case Take::version:
        return Read::version;
      case Take::damaged:
        return Read::damaged;
      case Take::more:
        if (state_ != State::ready && in_.size() >= kGreetingBytesMax) return Read::damaged;
        break;
    }
  }
  return ended_ ? Read::ended : Read::nothing;
}

int ControlSocket::connect_error() const noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

ControlSocket::Kernel ControlSocket::kernel(std::int64_t now_ns) const noexcept {
  unsigned char said[256] = {};
  socklen_t length = sizeof said;
  Kernel found;
  if (::getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, said, &length) != 0) return found;
  tcp_info info;
  std::memcpy(&info, said, sizeof info);
  found.established = info.tcpi_state == TCP_ESTABLISHED;
  if (!found.established) return found;
  found.answers = info.tcpi_retransmits < kUnansweredMax && info.tcpi_probes < kUnansweredMax;
  found.heard_ns = now_ns - std::int64_t{info.tcpi_last_ack_recv} * 1'000'000;
  std::uint32_t min_rtt_us = 0;
  if (length >= kMinRttOffset + sizeof min_rtt_us) std::memcpy(&min_rtt_us, said + kMinRttOffset, sizeof min_rtt_us);
  if (min_rtt_us != ~0u) found.rtt_ns = std::int64_t{min_rtt_us} * 1'000;
  return found;
}

datapath::SocketAddress ControlSocket::local() const noexcept { return end_of(descriptor_, ask_local); }
datapath::SocketAddress ControlSocket::remote() const noexcept { return end_of(descriptor_, ask_remote); }

void set_dscp(int descriptor, std::int64_t dscp, bool v6) noexcept {
  const int tos = static_cast<int>(dscp) << 2;
  if (tos != 0) ::setsockopt(descriptor, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, &tos, sizeof tos);
}

}  // namespace weft::control
