// Meets processes of the same host and user. The kernel says who is at the other end of a Unix socket (unix(7),
// SO_PEERCRED), so nothing that a peer claims decides whose memory is read.
#include "native/local/host.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "native/datapath/fork_registry.h"
#include "native/datapath/settings.h"
#include "native/engine/clock.h"
#include "native/engine/setup/descriptor_budget.h"

namespace weft::local {
namespace {

constexpr std::string_view kPrefix = "weft";  // of the name of each socket
constexpr int kBacklog = 4096;                // connections that nobody has taken in must not keep a peer out
constexpr std::size_t kGuestsMax = 256;
constexpr std::size_t kTurnedAwayMax = 64;
// Descriptors that fit into the control message of one: its length is rounded up, and the kernel fills it.
constexpr std::size_t kPassedMax = (CMSG_SPACE(sizeof(int)) - CMSG_LEN(0)) / sizeof(int);

sockaddr_un address_of(const std::string& name, socklen_t* length) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte is 0: the name is not in the file system, and ends with the process.
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// See user_namespaces(7), "Unmapped user and group IDs".
uid_t unmapped_user() noexcept {
  constexpr uid_t kUsual = 65534;
  std::FILE* const file = std::fopen("/proc/sys/kernel/overflowuid", "re");
  if (file == nullptr) return kUsual;
  char text[16] = {};
  const bool read = std::fgets(text, sizeof text, file) != nullptr;
  std::fclose(file);
  const char* const end = std::find(text, text + sizeof text - 1, '\n');
  uid_t user = 0;
  return read && std::from_chars(text, end, user).ptr == end ? user : kUsual;
}

std::string system_problem(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// Whether a new descriptor is one of the last that this process may have, which are left to the program.
bool is_of_program(int descriptor) noexcept {
  const auto within = [descriptor] {
    const std::int64_t soft = engine::soft_descriptor_limit();
    return descriptor < soft - std::min(engine::kProgramDescriptorsMax, soft / 4);
  };
  return !within() && !(engine::raise_descriptor_limit() && within());
}

std::string too_few_descriptors() {
  return "too few descriptors are left to this process; " + engine::raise_limit_advice();
}

bool send_memory(int socket, const std::string& token, int memory) noexcept {
  iovec data{const_cast<char*>(token.data()), token.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(token.size());
}

// Lets other processes read the memory of this one where Yama forbids it (PR_SET_PTRACER; prctl(2)). A kernel without
// Yama has no such call, and needs none.
void permit_copies(engine::LocalMode mode) noexcept {
  const bool any = mode == engine::LocalMode::any;
  if (!any && mode != engine::LocalMode::parent) return;
  const auto whom = any ? PR_SET_PTRACER_ANY : static_cast<unsigned long>(::getppid());
  if (whom != 0) static_cast<void>(::prctl(PR_SET_PTRACER, whom, 0, 0, 0));
}

// What a side tells the other about itself.
void introduce(Side* side) noexcept {
  const Mark& mark = own_mark();
  for (std::size_t i = 0; i < mark.words.size(); ++i) side->mark[i].store(mark.words[i], std::memory_order_relaxed);
  side->mark_address.store(reinterpret_cast<std::uintptr_t>(mark.words.data()), std::memory_order_release);
}

}  // namespace

std::string network_knob(const engine::Knobs& knobs) {
  const engine::Knobs usual;
  if (knobs.window_policy != usual.window_policy) return "WEFT_WINDOW_POLICY";
  if (knobs.path_policy != usual.path_policy) return "WEFT_PATH_POLICY";
  if (knobs.loss_policy != usual.loss_policy) return "WEFT_LOSS_POLICY";
  if (knobs.credit_policy != usual.credit_policy) return "WEFT_CREDIT_POLICY";
  if (!knobs.traffic_classes.empty()) return "WEFT_TRAFFIC_CLASSES";
  if (!knobs.record_file.empty()) return "WEFT_RECORD_FILE";
  if (!knobs.plan.empty()) return "WEFT_PLAN";
  if (!knobs.weights.empty()) return "WEFT_WEIGHTS";
  if (knobs.datapath != usual.datapath) return "WEFT_DATAPATH";
  if (!knobs.rdma_devices.empty()) return "WEFT_RDMA_DEVICES";
  if (knobs.paths != usual.paths) return "WEFT_PATHS";
  if (knobs.stripes != usual.stripes) return "WEFT_STRIPES";
  if (knobs.segment_bytes != usual.segment_bytes) return "WEFT_SEGMENT_BYTES";
  if (knobs.eager_bytes != usual.eager_bytes) return "WEFT_EAGER_BYTES";
  if (knobs.payload_crc != usual.payload_crc) return "WEFT_PAYLOAD_CRC";
  if (datapath::fault_rates(engine::KnobSettings(knobs), 0).any()) return "WEFT_FAULT";
  return "";
}

Host::Host(const engine::Knobs& knobs, std::size_t movers)
    : lends_(knobs.local != engine::LocalMode::ring),
      patience_ns_(knobs.handshake_timeout_ns),
      unmapped_(unmapped_user()),
      crew_(std::make_shared<Crew>(copiers_of(knobs) - 1, knobs.spin_ns)) {
  permit_copies(knobs.local);
  for (std::size_t i = 0; i < movers; ++i) movers_.push_back(std::make_unique<Mover>(knobs.spin_ns));
}

Host::~Host() {
  stop();
  for (Guest& guest : guests_) dismiss(&guest);
  datapath::close_socket(listening_);
}

// The process at the other end; 0: it cannot be named here. -1: it has another user, or may have.
pid_t Host::process_of(int socket, std::string* why) const {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    *why = system_problem("its Unix socket");
    return -1;
  }
  if (peer.uid != ::geteuid()) {
    *why = "its process has another user";
    return -1;
  }
  if (peer.uid == unmapped_) {
    *why = "its process and this one have the user " + std::to_string(unmapped_) +
           ", which stands for all that a user namespace does not map";
    return -1;
  }
  return std::max<pid_t>(peer.pid, 0);
}

bool Host::start(std::string* error) {
  std::uint8_t random[(kNameBytes - kPrefix.size()) / 2];
  if (::getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    *error = system_problem("getrandom");
    return false;
  }
  std::string name(kPrefix);
  for (const std::uint8_t byte : random) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    name += digits;
  }
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  listening_ = datapath::open_socket(AF_UNIX, SOCK_SEQPACKET);
  if (listening_ < 0 || ::bind(listening_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listening_, kBacklog) != 0) {
    *error = system_problem("a Unix socket cannot be opened");
    return false;
  }
  name_ = std::move(name);
  return true;
}

std::unique_ptr<Half> Host::propose(const std::string& name, const std::string& token, std::string* error) {
  // The peer states the name: other sockets than weft's must not be connected for it.
  if (name.size() != kNameBytes || name.compare(0, kPrefix.size(), kPrefix) != 0 || name_.empty()) return nullptr;
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  auto half = std::make_unique<Half>();
  const int socket = half->socket = datapath::open_socket(AF_UNIX, SOCK_SEQPACKET);
  int memory = -1;
  if ((socket < 0 && engine::is_out_of_descriptors(errno)) || is_of_program(socket)) {
    *error = too_few_descriptors();
  } else if (socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    half->process = process_of(socket, error);
    if (half->process >= 0) half->segment = Segment::make(&memory, error);
  } else if (errno != ECONNREFUSED) {  // refused: no process of this network namespace has the name
    *error = system_problem("its Unix socket");
  }
  if (half->segment != nullptr) {
    introduce(&half->segment->shared().sides[0]);
    if (!send_memory(socket, token, memory)) {
      *error = system_problem("its Unix socket");
      half->segment.reset();
    }
  }
  if (memory >= 0) ::close(memory);
  if (half->segment == nullptr) return nullptr;
  half->dialled = true;
  return half;
}

// Takes in processes that have connected, and what they sent; drops those that are late.
void Host::welcome() {
  const std::int64_t now_ns = engine::now_ns();
  // No more than waited at first: others may connect as fast as they are taken in.
  for (int count = 0, socket = -1; count <= kBacklog; ++count) {
    errno = 0;
    if ((socket = datapath::accept_socket(listening_, nullptr, nullptr)) < 0) break;
    std::string unsaid;  // any process can connect
    admit({socket, now_ns, {}, -1, process_of(socket, &unsaid)});
  }
  lacks_descriptors_ = engine::is_out_of_descriptors(errno);
  std::erase_if(guests_, [&](Guest& guest) {
    if (guest.token.empty() && read(&guest)) return false;
    if (now_ns - guest.since_ns < patience_ns_ && (!guest.token.empty() || errno == EAGAIN)) return false;
    dismiss(&guest);
    return true;
  });
}

void Host::admit(Guest guest) {
  if (guest.process < 0) return dismiss(&guest);
  const bool keeps = read(&guest) || errno == EAGAIN;
  if (is_of_program(guest.socket) || is_of_program(guest.memory)) return turn_away(&guest, too_few_descriptors());
  if (!keeps) return dismiss(&guest);
  if (guests_.size() >= kGuestsMax && !make_room())
    return turn_away(&guest,
                     std::to_string(kGuestsMax) + " other processes have proposed memory and use it for nothing");
  guests_.push_back(std::move(guest));
}

// Drops the guest that has proposed nothing for longest. False: all have.
bool Host::make_room() noexcept {
  const auto place =
      std::find_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.token.empty(); });
  if (place == guests_.end()) return false;
  dismiss(&*place);
  guests_.erase(place);
  return true;
}

// Its open frame, if that comes, is answered with the reason in the log.
void Host::turn_away(Guest* guest, std::string why) {
  dismiss(guest);
  if (guest->token.empty()) return;
  turned_away_.push_back({std::move(guest->token), std::move(why)});
  if (turned_away_.size() > kTurnedAwayMax) turned_away_.pop_front();
}

std::string Host::why_missing(const std::string& token) const {
  for (const TurnedAway& each : turned_away_) {
    if (each.token == token) return each.why;
  }
  if (lacks_descriptors_) return too_few_descriptors();
  return "its process did not reach this one, or has another user, or one that is not mapped here";
}

// Reads a proposal. False, with errno: none has arrived yet (EAGAIN), or it is damaged.
bool Host::read(Guest* guest) {
  char bytes[kTokenBytes];
  iovec data{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(guest->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  std::size_t passed = 0;
  int descriptors[kPassedMax];
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    passed = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(descriptors, CMSG_DATA(header), passed * sizeof(int));
  }
  if (passed == 1) {
    guest->memory = descriptors[0];
  } else {
    std::for_each(descriptors, descriptors + passed, ::close);
  }
  errno = EPROTO;
  if (got != static_cast<ssize_t>(kTokenBytes) || guest->memory < 0 || (message.msg_flags & MSG_CTRUNC) != 0)
    return false;
  guest->token.assign(bytes, sizeof bytes);
  return true;
}

void Host::tend() {
  if (listening_ >= 0) welcome();
  for (const auto& mover : movers_) mover->relieve(engine::now_ns());
}

void Host::stop() noexcept {
  for (auto& mover : movers_) {
    if (mover != nullptr && !mover->stop()) static_cast<void>(mover.release());  // its thread still uses it
  }
  crew_->stop();
}

void Host::dismiss(Guest* guest) noexcept {
  datapath::close_socket(guest->socket);
  if (guest->memory >= 0) ::close(guest->memory);
}

std::unique_ptr<Half> Host::take(const std::string& token, std::string* error) {
  if (listening_ < 0 || token.size() != kTokenBytes) return nullptr;
  welcome();
  const auto place =
      std::find_if(guests_.begin(), guests_.end(), [&](const Guest& guest) { return guest.token == token; });
  if (place == guests_.end()) {
    *error = why_missing(token);
    return nullptr;
  }
  Guest guest = std::move(*place);
  guests_.erase(place);
  auto half = std::make_unique<Half>();
  half->segment = Segment::adopt(std::exchange(guest.memory, -1), error);
  if (half->segment == nullptr) {
    dismiss(&guest);
    return nullptr;
  }
  introduce(&half->segment->shared().sides[1]);
  half->socket = guest.socket;
  half->process = guest.process;
  return half;
}

bool Host::join(std::unique_ptr<Half> half, std::uint64_t session,
                const std::shared_ptr<engine::ConnectionCore>& connection) {
  Mover* const mover = movers_[next_mover_++ % movers_.size()].get();
  const auto port = std::make_shared<Port>(std::move(half), lends_, mover, crew_);
  port->attach(connection);
  if (!mover->add(port)) return false;
  if (port->copies()) crew_->start();
  if (lends_ && port->copy_error() == EPERM) note_unreadable(*port, connection->peer_address());
  joined_.push_back({session, port});
  connection->use_port(port);
  return true;
}

void Host::note_unreadable(const Port& port, const std::string& peer) {
  unreadable_log_.log(
      engine::now_ns(), engine::LogLevel::info,
      peer + ", process " + std::to_string(port.process()) +
          " of this host, does not let this one read its memory (process_vm_readv: " + std::strerror(EPERM) +
          "): its long messages pass through the ring, which copies them twice; if kernel.yama.ptrace_scope is 1 here, "
          "WEFT_LOCAL=parent or any in that process permits it");
}

std::vector<std::uint64_t> Host::stuck() {
  std::vector<std::uint64_t> sessions;
  std::erase_if(joined_, [&](const Joined& joined) {
    const std::shared_ptr<Port> port = joined.port.lock();
    if (port != nullptr && port->is_stuck()) sessions.push_back(joined.session);
    return port == nullptr;
  });
  return sessions;
}

}  // namespace weft::local
