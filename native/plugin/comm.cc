// Maps NCCL's sends, receives and registrations to those of a connection. A post that can't be accepted yet returns
// success with a null request, as the interface requires.
#include "native/plugin/comm.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <string>
#include <utility>

#include "native/plugin/plugin.h"
#include "native/plugin/profiler/net_message.h"

namespace weft::nccl {
namespace {

Comm* find_comm(const void* handle) { return Session::instance().comms().find(handle); }

// Calls `post` with the comm and a slot for the new request; *request stays null if there is no room. On a failed
// connection it returns a request that fails in test(), as NCCL's own transports do: NCCL treats an error of isend or
// irecv as a misuse of the plugin, and an error of test() as a failed peer.
template <typename Post>
Status post_request(void* comm, const void* mhandle, void** request, Post&& post) {
  Comm* const self = find_comm(comm);
  if (self == nullptr) return Status::invalid_argument;
  const unsigned slot = self->take_slot(mhandle);
  const Status status = slot == Comm::kNoSlot ? self->connection().health() : post(self, slot);
  if (slot != Comm::kNoSlot && status == Status::ok) {
    *request = self->request_handle(slot);
    return Status::ok;
  }
  if (slot != Comm::kNoSlot) self->give_slot(slot);
  if (status == Status::invalid_argument) return status;
  // There is no room now: *request stays null, so NCCL tries again.
  if (status == Status::ok || status == Status::would_block) return Status::ok;
  if (status != Status::connection_closed && self->connection().health() == Status::ok) return self->note(status);
  self->fail_slot(status);
  *request = self->request_handle(Comm::kFailedSlot);
  return Status::ok;
}

// Asks NCCL's profiler which channel's trace record a message belongs to; 0: none, or another profiler is loaded. The
// event ends at once, because the trace follows the message itself.
std::uint32_t channel_of(void* parent) noexcept {
  const ProfilerCallback profiler = Session::instance().profiler();
  if (parent == nullptr || profiler == nullptr) return 0;
  NetMessage message;
  void* event = nullptr;
  constexpr int kStart = 0, kStop = 1;
  static_cast<void>(profiler(&event, kStart, parent, kNetPluginId, &message));
  if (event != nullptr) static_cast<void>(profiler(&event, kStop, nullptr, 0, nullptr));
  return message.channel;
}

}  // namespace

Comm::Comm(const void* context, std::shared_ptr<message::Runtime> runtime,
           std::shared_ptr<message::Connection> connection, Matching matching)
    : context_(context), matching_(matching), runtime_(std::move(runtime)), connection_(std::move(connection)) {
  if (matching == Matching::grouped_sends) send_groups_ = std::make_unique<SendGroups>(connection_.get());
  if (matching == Matching::grouped_receives) receive_groups_ = std::make_unique<ReceiveGroups>(connection_.get());
}

Comm::~Comm() {
  connection_->close();
  for (const auto& [handle, registration] : registrations_) runtime_->deregister_memory(registration.memory);
}

unsigned Comm::take_slot(const void* mhandle) {
  const std::lock_guard lock(slots_mutex_);
  if (free_slots_ == 0) return kNoSlot;
  const auto slot = static_cast<unsigned>(std::countr_zero(free_slots_));
  free_slots_ &= free_slots_ - 1;
  mhandles_[slot] = mhandle;
  return slot;
}

void Comm::give_slot(unsigned slot) {
  const std::lock_guard lock(slots_mutex_);
  requests_[slot] = nullptr;
  free_slots_ |= std::uint64_t{1} << slot;
}

// Stores the reason of a failure; only the first one is kept.
void Comm::fail_slot(Status status) {
  Status none = Status::ok;
  failure_.compare_exchange_strong(none, status, std::memory_order_acq_rel);
}

void* Comm::add_registration(void* data, std::size_t bytes) {
  Registration registration{data, bytes};
  // If a NIC refuses the memory, sends and receives copy their data instead; the registration is still valid for NCCL.
  static_cast<void>(runtime_->register_memory(data, bytes, -1, 0, &registration.memory));
  const std::lock_guard lock(registrations_mutex_);
  for (;;) {
    constexpr std::uint32_t kSerialMask = (1U << 24) - 1;
    const auto handle =
        reinterpret_cast<void*>(std::uintptr_t{static_cast<std::uint8_t>(HandleKind::memory)} << 56 |
                                std::uintptr_t{++next_registration_ & kSerialMask} << 32 | registration.memory);
    if (registrations_.emplace(handle, registration).second) return handle;
  }
}

bool Comm::remove_registration(void* mhandle) {
  Registration registration;
  {
    const std::lock_guard lock(registrations_mutex_);
    const auto found = registrations_.find(mhandle);
    if (found == registrations_.end()) return false;
    registration = found->second;
    registrations_.erase(found);
  }
  // NCCL frees the buffer as soon as this returns, even if requests still use it, so these requests are ended first,
  // and with them the connection. It stays if all outstanding requests name other registrations, perhaps of the same
  // memory.
  const bool partly_posted = (send_groups_ != nullptr && send_groups_->forget(mhandle)) ||
                             (receive_groups_ != nullptr && receive_groups_->forget(mhandle));
  if (partly_posted) connection_->close();
  if (may_be_used(mhandle)) connection_->quiesce(registration.data, registration.bytes);
  runtime_->deregister_memory(registration.memory);
  return true;
}

bool Comm::may_be_used(const void* mhandle) {
  if (receive_groups_ != nullptr) return receive_groups_->may_use(mhandle);
  const std::lock_guard lock(slots_mutex_);
  for (std::uint64_t taken = ~free_slots_; taken != 0; taken &= taken - 1) {
    const void* const used = mhandles_[static_cast<unsigned>(std::countr_zero(taken))];
    if (used == mhandle || used == nullptr) return true;
  }
  return false;
}

Status Comm::note(Status status) {
  if (!failure_logged_.exchange(true)) {
    Session::instance().log(engine::LogLevel::warn, "connection with " + connection_->peer_address() + " failed: " +
                                                        status_text(status) + " (" + status_name(status) + ")");
  }
  return status;
}

void* make_comm(const void* context, std::shared_ptr<message::Runtime> runtime,
                std::shared_ptr<message::Connection> connection, Matching matching) {
  return Session::instance().comms().add(
      std::make_unique<Comm>(context, std::move(runtime), std::move(connection), matching),
      [](Comm* made, OpaqueHandle handle) { made->set_handle(handle); });
}

Status close_comm(void* comm) {
  // If the comm is unknown, it was closed before, or its context was finalized; that is not an error.
  Session::instance().comms().remove(comm).reset();
  Session::instance().settle();
  return Status::ok;
}

Status reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle) {
  *mhandle = nullptr;
  Comm* const self = find_comm(comm);
  if (type != kPointerHost || self == nullptr) return Status::invalid_argument;
  *mhandle = self->add_registration(data, bytes);
  return Status::ok;
}

Status dereg_mr(void* comm, void* mhandle) {
  // NCCL stops its cleanup when this call fails, so a null or stale handle is treated as success.
  Comm* const self = find_comm(comm);
  if (mhandle != nullptr && self != nullptr) static_cast<void>(self->remove_registration(mhandle));
  return Status::ok;
}

Status isend(void* send_comm, const void* data, std::size_t bytes, int tag, void* mhandle, void* parent,
             void** request) {
  *request = nullptr;
  if (data == nullptr && bytes > 0) return Status::invalid_argument;
  return post_request(send_comm, mhandle, request, [&](Comm* comm, unsigned slot) {
    const std::uint32_t memory = Comm::memory_of(mhandle);
    switch (comm->matching()) {
      case Matching::plain:
        return comm->connection().post_send(data, bytes, memory, &comm->request(slot), channel_of(parent));
      case Matching::grouped_sends:
        return comm->send_groups()->add(slot, tag, {data, bytes, mhandle, memory, channel_of(parent)});
      case Matching::grouped_receives:
        break;
    }
    return Status::invalid_argument;
  });
}

Status irecv(void* receive_comm, const Receive* receives, int count, void** request) {
  // On entry *request may hold kOptionalCompletion instead of a pointer; it is always overwritten.
  *request = nullptr;
  if (count < 1 || count > kReceivesMax) return Status::invalid_argument;
  for (int i = 0; i < count; ++i) {
    if (receives[i].data == nullptr && receives[i].capacity_bytes > 0) return Status::invalid_argument;
  }
  const Receive& first = receives[0];
  return post_request(receive_comm, first.mhandle, request, [&](Comm* comm, unsigned slot) {
    if (comm->matching() == Matching::plain && count == 1) {
      return comm->connection().post_receive(first.data, first.capacity_bytes, Comm::memory_of(first.mhandle),
                                             &comm->request(slot), channel_of(first.parent));
    }
    if (comm->matching() != Matching::grouped_receives) return Status::invalid_argument;
    std::array<ReceiveGroups::Buffer, kReceivesMax> buffers;
    std::transform(receives, receives + count, buffers.begin(), [](const Receive& each) {
      return ReceiveGroups::Buffer{
          each.data, each.capacity_bytes, each.mhandle, Comm::memory_of(each.mhandle), channel_of(each.parent),
          each.tag};
    });
    return comm->receive_groups()->add(slot, buffers.data(), count);
  });
}

namespace {

// Tests the plain request of a slot. A failed request keeps its slot, so that each further test() returns the same
// result.
Status test_plain(Comm* comm, unsigned slot, bool* done, int* sizes) {
  engine::Request* const posted = comm->request(slot);
  if (posted == nullptr) return Status::invalid_argument;
  if (!posted->done()) comm->connection().progress(*posted);
  if (!posted->done() || posted->status() != Status::ok) return posted->done() ? posted->status() : Status::ok;
  if (sizes != nullptr) sizes[0] = static_cast<int>(std::min<std::size_t>(posted->bytes(), INT_MAX));
  comm->connection().release(posted);
  *done = true;
  return Status::ok;
}

Status test_slot(Comm* comm, unsigned slot, bool* done, int* sizes) {
  switch (comm->matching()) {
    case Matching::plain:
      break;
    case Matching::grouped_sends:
      return comm->send_groups()->test(slot, done, sizes);
    case Matching::grouped_receives:
      return comm->receive_groups()->test(slot, done, sizes);
  }
  return test_plain(comm, slot, done, sizes);
}

}  // namespace

Status test(void* request, int* done, int* sizes) {
  *done = 0;
  const OpaqueHandle handle = OpaqueHandle::of(request);
  if (handle.kind != HandleKind::request || handle.part > Comm::kFailedSlot) return Status::invalid_argument;
  Comm* const self = Session::instance().comms().find(handle);
  if (self == nullptr) return Status::invalid_argument;
  if (handle.part == Comm::kFailedSlot) {
    return self->failure() == Status::ok ? Status::invalid_argument : self->note(self->failure());
  }
  bool ended = false;
  const Status status = test_slot(self, handle.part, &ended, sizes);
  // NCCL's mistakes are not failures of the connection.
  if (status != Status::ok) return status == Status::invalid_argument ? status : self->note(status);
  if (!ended) return Status::ok;
  *done = 1;
  self->give_slot(handle.part);
  return Status::ok;
}

}  // namespace weft::nccl
