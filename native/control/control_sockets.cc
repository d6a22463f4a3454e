// Listens for and accepts control sockets. The number of sockets that have sent no hello is limited: a new socket
// replaces the oldest silent one, so that unauthenticated peers cannot block others.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "native/control/control_plane.h"
#include "native/control/handle.h"
#include "native/datapath/fork_registry.h"
#include "native/engine/clock.h"
#include "native/engine/log.h"
#include "native/engine/setup/descriptor_budget.h"

namespace weft::control {
namespace {

constexpr int kBacklog = 4096;

// Limit of control sockets without a hello: an eighth of the process's descriptor limit, within these bounds.
constexpr std::size_t kStrangersMin = 16, kStrangersMax = 256;

std::size_t strangers_max() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kStrangersMin;
  return std::clamp<std::size_t>(static_cast<std::size_t>(limit.rlim_cur / 8), kStrangersMin, kStrangersMax);
}

datapath::SocketAddress any_address(bool v6) noexcept {
  datapath::SocketAddress address;
  address.any.sa_family = v6 ? AF_INET6 : AF_INET;
  return address;
}

}  // namespace

int ControlPlane::open_listening(const datapath::SocketAddress& address, std::string* error) noexcept {
  const int descriptor = datapath::open_socket(address.any.sa_family, SOCK_STREAM);
  const int on = 1;
  if (descriptor >= 0) ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (descriptor >= 0) set_dscp(descriptor, knobs_->dscp, address.is_v6());
  if (descriptor >= 0 && ::bind(descriptor, &address.any, address.bytes()) == 0 &&
      ::listen(descriptor, kBacklog) == 0) {
    return descriptor;
  }
  const int problem = errno;
  *error = "cannot listen on " + target_of(address) + ": " + std::strerror(problem);
  if (problem == EADDRINUSE)
    *error += "; choose another port, a range such as 7000-7063 (WEFT_CONTROL_PORT), or 0 for any free one";
  if (engine::is_out_of_descriptors(problem)) *error += "; " + engine::raise_limit_advice();
  datapath::close_socket(descriptor);
  errno = problem;
  return -1;
}

Status ControlPlane::watch_listening(int descriptor, std::string* error) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0 || errno == EEXIST) return Status::ok;
  *error = std::string("cannot watch a listening socket: ") + std::strerror(errno);
  return Status::system_error;
}

// Call with the mutex locked. Opens the socket that the device's handles name; it listens on each of the device's
// addresses.
int ControlPlane::open_listening(datapath::SocketAddress address, const engine::PortRange& ports, std::string* error) {
  for (std::int64_t port = ports.first; port <= ports.last; ++port) {
    address.set_port(static_cast<std::uint16_t>(port));
    error->clear();
    const int descriptor = open_listening(address, error);
    if (descriptor >= 0 || errno != EADDRINUSE) return descriptor;
  }
  if (ports.is_range) {
    *error = "cannot listen: all ports of WEFT_CONTROL_PORT=" + knobs_->control_port + " are in use on " +
             address.text() + ", and each process of a host needs one for each device";
    errno = EADDRINUSE;
  }
  return -1;
}

Status ControlPlane::device_socket(std::uint32_t device, int* descriptor, std::string* error) {
  const auto place = device_sockets_.find(device);
  if (place != device_sockets_.end()) {
    *descriptor = place->second;
    return Status::ok;
  }
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  if ((*devices_)[device].places.size() > 1) address = any_address(address.is_v6());
  *descriptor = open_listening(address, engine::control_ports(*knobs_), error);
  if (*descriptor < 0) {
    return engine::is_out_of_descriptors(errno) ? Status::out_of_descriptors : Status::address_unavailable;
  }
  const Status status = watch_listening(*descriptor, error);
  if (status != Status::ok) {
    datapath::close_socket(*descriptor);
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

Status ControlPlane::listen(std::uint32_t device, std::uint16_t port, bool open, const engine::PolicySet& policies,
                            std::shared_ptr<ListenerState>* out, std::string* error) {
  if (!open && keyring_.tls() == nullptr) {
    *error = "a listener that only holders of its handle may dial needs TLS. " + keyring_.tls_problem() +
             ", or let everybody dial it: listen(open=True)";
    return Status::system_error;
  }
  auto made = std::make_shared<ListenerState>();
  made->id = random_token();
  made->device = device;
  made->open = open;
  made->policies = policies;
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  const std::lock_guard<std::mutex> lock(mutex_);
  Status status = Status::ok;
  if (port == 0) {
    int shared = -1;
    status = device_socket(device, &shared, error);
    if (status == Status::ok) address.set_port(port_of(shared));
    // The first listener takes the device's shared port, if the knob control_port has set it, as its own port. Other
    // listeners open a port of their own in own_port().
    const bool taken = std::any_of(listeners_.begin(), listeners_.end(), [&](const auto& known) {
      return known.second->device == device && known.second->port == address.port();
    });
    if (engine::control_ports(*knobs_).first != 0 && !taken) made->port = address.port();
  } else {
    status = open_port(made.get(), port, error);
    address.set_port(made->port);
  }
  if (status != Status::ok) return status;
  made->handle_port = address.port();
  if (made->port != 0 && port == 0) say_open(*made, address);
  write_handle({node_, made->id, device, address, keyring_.own_key()}, &made->handle);
  listeners_[made->id] = made;
  open_listeners_ += open ? 1 : 0;
  *out = std::move(made);
  return Status::ok;
}

// Call with the mutex locked. Listens on every local address, because peers that know the port may connect to any of
// them.
Status ControlPlane::open_port(ListenerState* listener, std::uint16_t port, std::string* error) {
  datapath::SocketAddress address = any_address((*devices_)[listener->device].places[0].address.is_v6());
  const engine::PortRange range = engine::control_ports(*knobs_);
  const bool any = port == 0 && range.is_range;
  const int descriptor = open_listening(address, any ? range : engine::PortRange{port, port, false}, error);
  if (descriptor < 0) {
    return engine::is_out_of_descriptors(errno) ? Status::out_of_descriptors : Status::address_unavailable;
  }
  const Status status = watch_listening(descriptor, error);
  if (status != Status::ok) {
    datapath::close_socket(descriptor);
    return status;
  }
  listening_[descriptor] = listener->device;
  listener->descriptor = descriptor;
  listener->port = port_of(descriptor);
  address.set_port(listener->port);
  say_open(*listener, address);
  return Status::ok;
}

void ControlPlane::say_open(const ListenerState& listener, const datapath::SocketAddress& address) {
  if (!listener.open || keyring_.has_secret()) return;
  engine::log(engine::LogLevel::info, "listening without a handle's key or a secret on " + target_of(address) +
                                          ": any process that reaches it may connect; set WEFT_SECRET_FILE to "
                                          "require a secret");
}

std::uint16_t ControlPlane::own_port(const std::shared_ptr<ListenerState>& listener) noexcept {
  try {
    std::string error;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!listener->open) return listener->handle_port;
    if (listener->port == 0 && open_port(listener.get(), 0, &error) != Status::ok)
      engine::log(engine::LogLevel::warn, error);
    return listener->port;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// Finds a listener by its id; if the id is 0, an open one by the port on which the session was accepted. A peer that
// has not proved the key of this process's handles reaches open listeners only.
std::shared_ptr<ListenerState> ControlPlane::listener_for(const Session& session, std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (id != 0) {
    const auto place = listeners_.find(id);
    const bool allowed = place != listeners_.end() && (session.guard == Guard::key || place->second->open);
    return allowed ? place->second : nullptr;
  }
  for (const auto& [known, listener] : listeners_) {
    if (listener->port == session.local_port && listener->open) return listener;
  }
  return nullptr;
}

// The address at which other processes reach this process while it runs; its port is 0 if no descriptor is left for a
// socket.
datapath::SocketAddress ControlPlane::control_address(std::uint32_t device) noexcept {
  datapath::SocketAddress address = (*devices_)[device].places[0].address;
  address.set_port(0);
  try {
    std::string error;
    int descriptor = -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (device_socket(device, &descriptor, &error) == Status::ok) address.set_port(port_of(descriptor));
  } catch (const std::bad_alloc&) {  // the port stays 0; other control sockets still work
  }
  return address;
}

void ControlPlane::close_sockets() noexcept {
  for (const auto& [descriptor, device] : listening_) datapath::close_socket(descriptor);
}

void ControlPlane::close_listener(const std::shared_ptr<ListenerState>& listener) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (listeners_.erase(listener->id) != 0 && listener->open) --open_listeners_;
    if (listener->descriptor >= 0) {
      listening_.erase(listener->descriptor);
      datapath::close_socket(listener->descriptor);  // the kernel also removes it from the epoll instance
      listener->descriptor = -1;
    }
  }
  std::list<std::shared_ptr<engine::ConnectionCore>> unclaimed;
  {
    const std::lock_guard<std::mutex> lock(listener->mutex);
    listener->closed = true;
    unclaimed.swap(listener->ready);
  }
  listener->changed.notify_all();
  for (const auto& connection : unclaimed) connection->fail(Status::connection_closed);
}

// The mutex stays locked, so that no other listener can reuse the descriptor meanwhile.
void ControlPlane::accept_all(int listening) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = listening_.find(listening);
  if (place == listening_.end()) return;
  // Accepts at most half of strangers_max() sockets per iteration; other peers wait in the backlog while accepted
  // sockets are read.
  for (std::size_t i = 0; i < strangers_max() / 2; ++i) {
    if (!accept_one(listening, place->second)) return;
  }
}

// Accepts or refuses one connection. Returns false if the backlog is empty.
bool ControlPlane::accept_one(int listening, std::uint32_t device) {
  datapath::SocketAddress from;
  socklen_t length = sizeof from;
  const int descriptor = datapath::accept_socket(listening, &from.any, &length);
  if (descriptor < 0) {
    const int problem = errno;
    if (problem == EINTR || problem == ECONNABORTED) return true;
    const bool exhausted = engine::is_out_of_descriptors(problem) || problem == ENOMEM || problem == ENOBUFS;
    // accept() fails for lack of a descriptor even if the backlog is empty, because the kernel allocates the descriptor
    // first.
    pollfd waiting{listening, POLLIN, 0};
    if (!exhausted || ::poll(&waiting, 1, 0) == 0) return false;
    if ((problem == EMFILE && engine::raise_descriptor_limit()) || make_room(0)) return true;
    const std::int64_t now = engine::now_ns();
    const bool descriptors = engine::is_out_of_descriptors(problem);
    std::string text = std::string("cannot accept peers that have connected: ") + std::strerror(problem);
    if (descriptors) {
      text +=
          " (the limit is " + std::to_string(engine::soft_descriptor_limit()) + "); " + engine::raise_limit_advice();
    }
    accept_gate_.on_failed(now, descriptors ? Status::out_of_descriptors : Status::out_of_memory, text);
    exhausted_log_.log(now, engine::LogLevel::warn, text);
    if (accept_gate_.turns_away(now)) accept_to_refuse(listening, device);
    pause_accepting();
    return false;
  }
  accept_gate_.on_accepted();
  if (const ControlSocket* socket = add_accepted(descriptor, listening, device, from)) {
    std::size_t strangers = 0;
    for (const auto& [id, each] : sockets_) {
      strangers += each->state() == ControlSocket::State::greeting && !each->dialled() ? 1 : 0;
    }
    if (strangers > strangers_max()) static_cast<void>(make_room(socket->since_ns()));
  }
  return true;
}

ControlSocket* ControlPlane::add_accepted(int descriptor, int listening, std::uint32_t device,
                                          const datapath::SocketAddress& from) {
  const ControlSocket::TlsServer server{keyring_.tls(), &keyring_};
  ControlSocket* socket =
      watch_socket(std::make_unique<ControlSocket>(next_socket_++, descriptor, engine::now_ns(), server));
  if (socket == nullptr) return nullptr;
  socket->device = device;
  socket->local_port = port_of(listening);
  socket->peer_address = target_of(from);
  return socket;
}

// Used while no descriptor is free: accepts one peer at a time with the spare descriptor, reads its hello, and tells it
// why it is refused. Otherwise the peer would wait in the backlog until its timeout, and not learn why.
void ControlPlane::accept_to_refuse(int listening, std::uint32_t device) {
  accept_gate_.open_spare();  // tries again if the spare descriptor could not be opened before
  const bool busy =
      std::any_of(sockets_.begin(), sockets_.end(), [](const auto& each) { return each.second->turned_away; });
  if (busy || !accept_gate_.take_spare()) return;
  datapath::SocketAddress from;
  socklen_t length = sizeof from;
  const int descriptor = datapath::accept_socket(listening, &from.any, &length);
  ControlSocket* socket = descriptor < 0 ? nullptr : add_accepted(descriptor, listening, device, from);
  if (socket == nullptr) return accept_gate_.open_spare();
  socket->turned_away = true;
}

Status ControlPlane::accept_trouble(std::int64_t within_ns, std::string* text) {
  const std::int64_t now_ns = engine::now_ns();
  *text = last_refusal_.text(now_ns, within_ns);
  const std::lock_guard<std::mutex> lock(mutex_);
  return accept_gate_.problem(now_ns, within_ns, text);
}

// Drops the oldest control socket that has sent no hello or whose session has no confirmed connection; a socket that
// has sent nothing counts as one second older. The socket that was accepted at `spare_ns` is kept. Returns false if
// there is none to drop.
bool ControlPlane::make_room(std::int64_t spare_ns) {
  constexpr std::int64_t kSilentNs = 50'000'000, kHandicapNs = 1'000'000'000;
  ControlSocket* oldest = nullptr;
  std::int64_t oldest_ns = 0;
  const std::int64_t now = engine::now_ns();
  for (const auto& [id, socket] : sockets_) {
    if (socket->dialled() || socket->turned_away || socket->since_ns() == spare_ns) continue;
    const Session* session = find_session(socket->session);
    const bool unused = session != nullptr && !session->dialled && !session->confirmed;
    if (socket->state() != ControlSocket::State::greeting && !unused) continue;
    const bool silent = socket->is_silent() && now - socket->since_ns() >= kSilentNs;
    const std::int64_t since_ns = socket->since_ns() - (silent ? kHandicapNs : 0);
    if (oldest != nullptr && since_ns >= oldest_ns) continue;
    oldest = socket.get();
    oldest_ns = since_ns;
  }
  if (oldest == nullptr) return false;
  stranger(*oldest, "was replaced by a newer control socket");
  drop_socket(oldest, "too many control sockets without a hello");
  return true;
}

// Stops watching the listening sockets: level-triggered epoll would report them again and again during the pause.
void ControlPlane::pause_accepting() {
  if (!accept_gate_.pause(engine::now_ns())) return;
  for (const auto& [descriptor, device] : listening_) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
}

}  // namespace weft::control
