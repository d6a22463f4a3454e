// Polls as NCCL does: a thread looks at its request again and again, and its looks move the messages.
#include "bench/native/loops/trips_bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "native/engine/clock.h"
#include "native/message/runtime.h"

namespace weft::bench {
namespace {

constexpr std::int64_t kTripNs = 30'000'000'000;  // only ends a hang
constexpr std::int64_t kLooks = 4096;             // between two looks at the clock

class WeftTrips final : public TripEnd {
 public:
  Status start(const engine::Knobs& knobs, std::string* error) {
    Status status = message::Runtime::open(knobs, &runtime_, error);
    if (status == Status::ok) status = runtime_->listen(0, 0, false, "", &listener_, error);
    return status;
  }
  Status connect(const engine::Knobs& knobs, const std::string& address, std::string* error) {
    control::Handle handle;
    if (address.size() != sizeof handle.bytes) return Status::invalid_argument;
    std::copy(address.begin(), address.end(), handle.bytes);
    std::unique_ptr<message::Dial> dial;
    Status status = message::Runtime::open(knobs, &runtime_, error);
    if (status == Status::ok) status = runtime_->connect(0, handle, "", &dial, error);
    if (status != Status::ok) return status;
    status = await([&] { return dial->poll(&connection_); });
    if (status != Status::ok) *error = dial->error();
    return status;
  }
  std::string address() const override {
    const control::Handle handle = listener_->handle();
    return {handle.bytes, handle.bytes + sizeof handle.bytes};
  }
  Status accept() override {
    return await([&] { return listener_->accept(&connection_); });
  }
  bool used_network() const override { return connection_->counters().segments_sent != 0; }

 private:
  template <typename Poll>
  static Status await(const Poll& poll) {
    const std::int64_t until_ns = engine::now_ns() + kTripNs;
    Status status = Status::would_block;
    while ((status = poll()) == Status::would_block && engine::now_ns() < until_ns) std::this_thread::yield();
    return status == Status::would_block ? Status::timed_out : status;
  }
  Status finish(engine::Request* request) {
    const std::int64_t until_ns = engine::now_ns() + kTripNs;
    for (std::int64_t looks = 0; !request->done(); ++looks) {
      connection_->progress(*request);
      if (looks % kLooks == kLooks - 1 && engine::now_ns() > until_ns) return Status::timed_out;
    }
    const Status status = request->status();
    connection_->release(request);
    return status;
  }
  Status move(const std::uint8_t* out, std::uint8_t* in, std::uint64_t bytes) override {
    engine::Request *send = nullptr, *receive = nullptr;
    Status status = Status::ok;
    if (in != nullptr) status = connection_->post_receive(in, bytes, 0, &receive);
    if (out != nullptr && status == Status::ok) status = connection_->post_send(out, bytes, 0, &send);
    if (receive != nullptr && status == Status::ok) status = finish(receive);
    if (send != nullptr && status == Status::ok) status = finish(send);
    return status;
  }

  std::shared_ptr<message::Runtime> runtime_;
  std::unique_ptr<message::Listener> listener_;
  std::shared_ptr<message::Connection> connection_;
};

class TcpTrips final : public TripEnd {
 public:
  ~TcpTrips() override {
    for (const int socket : {listening_, stream_}) {
      if (socket >= 0) ::close(socket);
    }
  }
  bool start() {
    sockaddr_in at = loopback(0);
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return listening_ >= 0 && ::bind(listening_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
           ::listen(listening_, 1) == 0;
  }
  bool connect(const std::string& address) {
    const sockaddr_in at = loopback(static_cast<std::uint16_t>(std::strtoul(address.c_str(), nullptr, 10)));
    stream_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return stream_ >= 0 && ::connect(stream_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && at_once();
  }
  std::string address() const override {
    sockaddr_in at{};
    socklen_t length = sizeof at;
    ::getsockname(listening_, reinterpret_cast<sockaddr*>(&at), &length);
    return std::to_string(ntohs(at.sin_port));
  }
  Status accept() override {
    stream_ = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    return stream_ >= 0 && at_once() ? Status::ok : Status::system_error;
  }
  bool used_network() const override { return true; }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }
  bool at_once() const {
    const int on = 1;
    return ::setsockopt(stream_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
  }
  Status move(const std::uint8_t* out, std::uint8_t* in, std::uint64_t bytes) override {
    for (std::uint64_t done = 0; out != nullptr && done < bytes;) {
      const ssize_t sent = ::send(stream_, out + done, bytes - done, MSG_NOSIGNAL);
      if (sent < 0) return Status::system_error;
      done += static_cast<std::uint64_t>(sent);
    }
    for (std::uint64_t done = 0; in != nullptr && done < bytes;) {
      const ssize_t got = ::recv(stream_, in + done, bytes - done, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return Status::connection_closed;
      if (got > 0) done += static_cast<std::uint64_t>(got);
    }
    return Status::ok;
  }
  int listening_ = -1, stream_ = -1;
};

Status tcp_problem(std::string* error) {
  *error = std::string("TCP over loopback: ") + std::strerror(errno);
  return Status::system_error;
}

}  // namespace

Status TripEnd::listen(const engine::Knobs* knobs, std::unique_ptr<TripEnd>* out, std::string* error) {
  if (knobs == nullptr) {
    auto made = std::make_unique<TcpTrips>();
    if (!made->start()) return tcp_problem(error);
    *out = std::move(made);
    return Status::ok;
  }
  auto made = std::make_unique<WeftTrips>();
  const Status status = made->start(*knobs, error);
  *out = std::move(made);
  return status;
}

Status TripEnd::dial(const engine::Knobs* knobs, const std::string& address, std::unique_ptr<TripEnd>* out,
                     std::string* error) {
  if (knobs == nullptr) {
    auto made = std::make_unique<TcpTrips>();
    if (!made->connect(address)) return tcp_problem(error);
    *out = std::move(made);
    return Status::ok;
  }
  auto made = std::make_unique<WeftTrips>();
  const Status status = made->connect(*knobs, address, error);
  *out = std::move(made);
  return status;
}

Status TripEnd::echo(std::uint64_t bytes, std::int64_t count) {
  std::vector<std::uint8_t> room(bytes);
  Status status = Status::ok;
  for (std::int64_t i = 0; i < count && status == Status::ok; ++i) {
    status = move(nullptr, room.data(), bytes);
    if (status == Status::ok) status = move(room.data(), nullptr, bytes);
  }
  return status;
}

Status TripEnd::exchange(std::uint64_t bytes, std::int64_t count, std::vector<std::int64_t>* round_ns,
                         std::int64_t* wrong) {
  std::vector<std::uint8_t> data[2], answer(bytes);
  for (std::uint8_t i = 0; i < 2; ++i) {
    data[i].resize(bytes);
    for (std::uint64_t at = 0; at < bytes; ++at) data[i][at] = static_cast<std::uint8_t>(at * 131 + i + 1);
  }
  round_ns->assign(static_cast<std::size_t>(count), 0);
  Status status = Status::ok;
  for (std::int64_t i = 0; i < count && status == Status::ok; ++i) {
    const std::int64_t begin_ns = engine::now_ns();
    status = move(data[i % 2].data(), answer.data(), bytes);
    (*round_ns)[static_cast<std::size_t>(i)] = engine::now_ns() - begin_ns;
    *wrong += answer != data[i % 2];
  }
  return status;
}

}  // namespace weft::bench
