// Lists devices, and creates listeners and connections for NCCL. No call blocks: while a connection attempt is in
// progress, the result is success with a null comm.
#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "native/plugin/comm.h"
#include "native/plugin/plugin.h"
#include "native/plugin/tuner/digest.h"

namespace weft::nccl {
namespace {

// The speed reported for loopback and virtual devices; NCCL's own Socket transport reports the same.
constexpr int kSpeedMbpsUnknown = 10'000;

// The part of NCCL's 128-byte handle that this plugin uses to remember a connection attempt between calls of connect.
// It holds an id instead of a pointer, because the handle comes from another process and can't be trusted.
struct HandleTail {
  std::uint64_t magic;
  std::uint64_t attempt;
};
constexpr std::uint64_t kTailMagic = 0x7765'6674'7472'7931;
// In the handle, the digest of the listener's tuning rules follows the HandleTail, and then one byte: 1 if the listener
// accepts connections with grouped receives.
constexpr std::size_t kDigestAt = control::kHandleBytes + sizeof(HandleTail);
constexpr std::size_t kGroupedAt = kDigestAt + sizeof(std::uint64_t);
static_assert(kGroupedAt < kHandleBytesMax);

std::uint8_t* tail_of(void* handle) { return static_cast<std::uint8_t*>(handle) + control::kHandleBytes; }

std::uint8_t* digest_in(void* handle) { return static_cast<std::uint8_t*>(handle) + kDigestAt; }

std::uint8_t* grouped_in(void* handle) { return static_cast<std::uint8_t*>(handle) + kGroupedAt; }

// Whether the peer has the same tuning rules. With different ones, ranks would choose different algorithms and NCCL
// would hang.
bool has_our_rules(void* handle) {
  std::uint64_t theirs;
  std::memcpy(&theirs, digest_in(handle), sizeof theirs);
  if (theirs == rules_digest()) return true;
  Session::instance().log(engine::LogLevel::warn,
                          "cannot connect: the peer has other tuning rules. Give every rank the same WEFT_TUNE, and "
                          "files with the same rules");
  return false;
}

// Whether the peer groups receives as this process does. NCCL decides at each end, by the number of receives that its
// own device takes, which connections ranks share; with different answers, one end would wait for ever.
bool groups_as_we_do(void* handle) {
  const bool ours = Session::instance().nccl_receives_max() > 1;
  if ((*grouped_in(handle) == 1) == ours) return true;
  Session::instance().log(engine::LogLevel::warn,
                          "cannot connect: the peer has another WEFT_NCCL_RECEIVES_MAX. Give every rank the same");
  return false;
}

// The name under which both ends look up the policies of a traffic class in the knob traffic_classes.
std::string policies_of(int traffic_class) { return traffic_class < 0 ? "" : "class " + std::to_string(traffic_class); }

Status begin_attempt(const void* context, int device, int traffic_class, const control::Handle& handle,
                     std::shared_ptr<Attempt>* out) {
  if (!Session::instance().knows(context, &traffic_class)) return Status::invalid_argument;
  std::shared_ptr<message::Runtime> runtime;
  if (const Status status = Session::instance().runtime(&runtime); status != Status::ok) return status;
  std::unique_ptr<message::Dial> dial;
  std::string error;
  const Status status = runtime->connect(device, handle, policies_of(traffic_class), &dial, &error);
  if (status != Status::ok) {
    Session::instance().log(
        engine::LogLevel::warn,
        "cannot connect: " + error + ". Give every rank the same NCCL_NET, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE");
    return status;
  }
  *out = std::make_shared<Attempt>(context, handle, std::move(runtime), std::move(dial));
  return Status::ok;
}

}  // namespace

Status init(Logger log) {
  if (!mark_parent()) return Status::forked_child;
  return Session::instance().init(log);
}

Status init(Logger log, std::uint64_t comm_id, int traffic_class, void** context) {
  if (!mark_parent()) return Status::forked_child;
  void* made = nullptr;
  const Status status = Session::instance().init(log, comm_id, traffic_class, &made);
  if (context != nullptr) *context = made;
  return status;
}

Status finalize(void* context) {
  Session::instance().finalize(context);
  return Status::ok;
}

Status device_count(int* count) {
  *count = static_cast<int>(Session::instance().devices().size());
  return Status::ok;
}

Status device_facts(int device, DeviceFacts* facts) {
  // NCCL keeps the pointer to the device's name; that is safe because device lists are never changed.
  const std::vector<datapath::Device>& devices = Session::instance().devices();
  if (device < 0 || static_cast<std::size_t>(device) >= devices.size()) return Status::invalid_argument;
  const datapath::Device& found = devices[static_cast<std::size_t>(device)];
  const std::int64_t knob_mbps = Session::instance().nccl_speed_mbps();
  const std::int64_t speed_mbps = knob_mbps != 0 ? knob_mbps : found.speed_mbps;
  facts->name = const_cast<char*>(found.name.c_str());  // NOLINT: the interface's type; NCCL only reads it
  facts->guid = found.guid;
  facts->receives_max = Session::instance().nccl_receives_max();
  facts->speed_mbps =
      speed_mbps > 0 ? static_cast<int>(std::min<std::int64_t>(speed_mbps, INT_MAX)) : kSpeedMbpsUnknown;
  return Status::ok;
}

Status listen(void* context, int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  std::memset(handle, 0, kHandleBytesMax);
  int traffic_class = kNoTrafficClass;
  if (!Session::instance().knows(context, &traffic_class)) return Status::invalid_argument;
  auto made = std::make_unique<ListenComm>();
  made->context = context;
  if (const Status status = Session::instance().runtime(&made->runtime); status != Status::ok) return status;
  std::string error;
  const Status status = made->runtime->listen(device, 0, false, policies_of(traffic_class), &made->listener, &error);
  if (status != Status::ok) {
    Session::instance().log(engine::LogLevel::warn, "cannot listen: " + error);
    made.reset();
    Session::instance().settle();
    return status;
  }
  const control::Handle own = made->listener->handle();
  const std::uint64_t digest = rules_digest();
  std::memcpy(handle, own.bytes, control::kHandleBytes);
  std::memcpy(digest_in(handle), &digest, sizeof digest);
  made->grouped = Session::instance().nccl_receives_max() > 1;
  *grouped_in(handle) = made->grouped ? 1 : 0;
  *listen_comm = Session::instance().listeners().add(std::move(made));
  if (*listen_comm != nullptr) return Status::ok;
  Session::instance().settle();
  return Status::out_of_memory;
}

Status connect(void* context, int device, int traffic_class, void* handle, void** send_comm,
               DeviceHandle** device_comm) {
  *send_comm = nullptr;
  if (device_comm != nullptr) *device_comm = nullptr;
  control::Handle peer;
  std::memcpy(peer.bytes, handle, control::kHandleBytes);
  HandleTail tail;
  std::memcpy(&tail, tail_of(handle), sizeof tail);

  Session& session = Session::instance();
  std::shared_ptr<Attempt> attempt;
  if (tail.magic == kTailMagic) attempt = session.find_attempt(tail.attempt, peer);
  if (attempt == nullptr) {
    if (!has_our_rules(handle) || !groups_as_we_do(handle)) return Status::invalid_argument;
    if (const Status status = begin_attempt(context, device, traffic_class, peer, &attempt); status != Status::ok) {
      session.settle();
      return status;
    }
    tail = {kTailMagic, session.add_attempt(attempt)};
    std::memcpy(tail_of(handle), &tail, sizeof tail);
  }
  std::shared_ptr<message::Runtime> runtime;
  std::shared_ptr<message::Connection> connection;
  std::string error;
  const Status status = attempt->poll(&runtime, &connection, &error);
  if (status == Status::would_block) return Status::ok;
  if (status == Status::ok) {
    *send_comm = make_comm(attempt->context(), std::move(runtime), std::move(connection),
                           *grouped_in(handle) == 1 ? Matching::grouped_sends : Matching::plain);
  } else {
    session.log(engine::LogLevel::warn, "cannot connect: " + error);
  }
  session.remove_attempt(tail.attempt);
  std::memset(tail_of(handle), 0, sizeof tail);
  attempt.reset();
  session.settle();
  return status == Status::ok && *send_comm == nullptr ? Status::out_of_memory : status;
}

Status accept(void* listen_comm, void** receive_comm, DeviceHandle** device_comm) {
  *receive_comm = nullptr;
  if (device_comm != nullptr) *device_comm = nullptr;
  ListenComm* const found = Session::instance().listeners().find(listen_comm);
  if (found == nullptr) return Status::invalid_argument;
  std::shared_ptr<message::Connection> connection;
  const Status status = found->listener->accept(&connection);
  if (status == Status::would_block) return Status::ok;
  if (status != Status::ok) {
    Session::instance().log(engine::LogLevel::warn,
                            std::string("cannot accept: ") + status_text(status) + " (" + status_name(status) + ")");
    return status;
  }
  *receive_comm = make_comm(found->context, found->runtime, std::move(connection),
                            found->grouped ? Matching::grouped_receives : Matching::plain);
  return *receive_comm == nullptr ? Status::out_of_memory : Status::ok;
}

Status close_listen(void* listen_comm) {
  // If the listener is unknown, its context was finalized, which closed it; that is not an error.
  Session::instance().listeners().remove(listen_comm).reset();
  Session::instance().settle();
  return Status::ok;
}

}  // namespace weft::nccl
