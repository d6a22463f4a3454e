// Plain send and recv on a non-blocking socket. What was read before the end of the stream is still handed out.
// Input is bounded: a peer that sends without end is cut off at one frame too many.
#include "native/engine/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace weft::engine {

Channel::~Channel() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Channel::flush() noexcept {
  while (!out_.empty()) {
    const ssize_t sent = ::send(descriptor_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Channel::Read Channel::poll(Frame* out, std::uint16_t* version) {
  char buffer[16384];
  while (!ended_ && in_.size() < 2 * kFrameBodyMax) {
    const ssize_t got = ::recv(descriptor_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      in_.append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    ended_ = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    break;
  }
  if (!in_.empty()) {
    switch (take_frame(&in_, out, version)) {
      case Take::frame:
        return Read::frame;
      case Take::stranger:
        return Read::stranger;
      case Take::version:
        return Read::version;
      case Take::damaged:
        return Read::damaged;
      case Take::more:
        break;
    }
  }
  return ended_ ? Read::ended : Read::nothing;
}

int Channel::connect_error() const noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace weft::engine
