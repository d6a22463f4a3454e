// Maps NCCL's sends, receives and registrations to the engine's.
// A post that cannot be taken now is a null request with success, as NCCL wants it.
#include "native/plugin/comm.h"

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "native/plugin/plugin.h"

namespace weft::nccl {
namespace {

// Twice what NCCL keeps out in one direction; beyond it a caller is told "not now".
constexpr std::size_t kSlotsMax = std::size_t{2} * kMaxRequests;

// Posts through `post` and hands out a slot; leaves *request null when the engine has no room. On a connection that is
// over it hands out a request that test() fails, as NCCL's own transports do: NCCL takes an error of isend or irecv for
// a misuse of the plugin, and one of test() for a failed peer.
template <typename Post>
Status post_request(void* comm, void** request, Post&& post) {
  auto* self = static_cast<Comm*>(comm);
  Slot* const slot = self->take_slot();
  const Status status = slot == nullptr ? self->connection().health() : post(self->connection(), &slot->request);
  if (slot != nullptr && status == Status::ok) {
    *request = slot;
    return Status::ok;
  }
  if (slot != nullptr) self->give_slot(slot);
  if (status == Status::ok || status == Status::would_block) return Status::ok;  // not now
  if (status != Status::connection_closed && self->connection().health() == Status::ok) return self->note(status);
  *request = self->failed_slot(status);
  return Status::ok;
}

}  // namespace

Comm::Comm(std::shared_ptr<engine::Runtime> runtime, std::shared_ptr<engine::Connection> connection)
    : runtime_(std::move(runtime)), connection_(std::move(connection)) {}

Comm::~Comm() {
  connection_->close();
  for (Registration* registration : registrations_) {
    runtime_->deregister_memory(registration->memory);
    delete registration;
  }
}

Slot* Comm::take_slot() {
  const std::lock_guard lock(slots_mutex_);
  if (free_slots_ == nullptr) {
    if (slots_.size() >= kSlotsMax) return nullptr;
    free_slots_ = &slots_.emplace_back();
    free_slots_->comm = this;
  }
  Slot* const slot = free_slots_;
  free_slots_ = slot->next_free;
  slot->next_free = nullptr;
  slot->request = nullptr;
  return slot;
}

void Comm::give_slot(Slot* slot) {
  const std::lock_guard lock(slots_mutex_);
  slot->request = nullptr;
  slot->next_free = free_slots_;
  free_slots_ = slot;
}

Slot* Comm::failed_slot(Status status) {
  const std::lock_guard lock(slots_mutex_);
  if (failed_.failure == Status::ok) {
    failed_.comm = this;
    failed_.failure = status;
  }
  return &failed_;
}

void* Comm::add_registration(void* data, std::size_t bytes) {
  auto registration = std::make_unique<Registration>(Registration{data, bytes});
  // A NIC that refuses costs a copy, not the registration.
  static_cast<void>(runtime_->register_memory(data, bytes, -1, 0, &registration->memory));
  const std::lock_guard lock(registrations_mutex_);
  registrations_.insert(registration.get());
  return registration.release();
}

bool Comm::remove_registration(void* mhandle) {
  std::unique_ptr<Registration> registration(static_cast<Registration*>(mhandle));
  {
    const std::lock_guard lock(registrations_mutex_);
    if (registrations_.erase(registration.get()) == 0) {
      static_cast<void>(registration.release());
      return false;
    }
  }
  // The buffer is freed as soon as this returns, often with requests outstanding.
  connection_->quiesce(registration->data, registration->bytes);
  runtime_->deregister_memory(registration->memory);
  return true;
}

Status Comm::note(Status status) {
  if (!failure_logged_.exchange(true)) {
    Session::instance().log(engine::LogLevel::warn, "connection with " + connection_->peer_address() + " failed: " +
                                                        status_text(status) + " (" + status_name(status) + ")");
  }
  return status;
}

void* make_comm(std::shared_ptr<engine::Runtime> runtime, std::shared_ptr<engine::Connection> connection) {
  auto made = std::make_unique<Comm>(std::move(runtime), std::move(connection));
  Session::instance().add(made.get());
  return made.release();
}

Status close_comm(void* comm) {
  // An unknown comm is a second close; either way nothing of it is left.
  if (Session::instance().remove(comm)) delete static_cast<Comm*>(comm);
  Session::instance().settle();
  return Status::ok;
}

Status reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle) {
  *mhandle = nullptr;
  if (type != kPointerHost || !Session::instance().owns(comm)) return Status::invalid_argument;
  *mhandle = static_cast<Comm*>(comm)->add_registration(data, bytes);
  return Status::ok;
}

Status dereg_mr(void* comm, void* mhandle) {
  // NCCL stops freeing what is left when this fails, so a null or stale handle is success.
  if (mhandle != nullptr && Session::instance().owns(comm)) {
    static_cast<void>(static_cast<Comm*>(comm)->remove_registration(mhandle));
  }
  return Status::ok;
}

Status isend(void* send_comm, const void* data, std::size_t bytes, void* mhandle, void** request) {
  *request = nullptr;
  if (send_comm == nullptr || (data == nullptr && bytes > 0)) return Status::invalid_argument;
  return post_request(send_comm, request, [&](engine::Connection& connection, engine::Request** out) {
    return connection.post_send(data, bytes, Comm::memory_of(mhandle), out);
  });
}

Status irecv(void* receive_comm, int count, void* const* data, std::size_t capacity_bytes, void* const* mhandles,
             void** request) {
  // On entry *request may be a hint and no pointer; it is overwritten in every case.
  *request = nullptr;
  if (receive_comm == nullptr || count != 1 || (data[0] == nullptr && capacity_bytes > 0)) {
    return Status::invalid_argument;
  }
  return post_request(receive_comm, request, [&](engine::Connection& connection, engine::Request** out) {
    const std::uint32_t memory = Comm::memory_of(mhandles == nullptr ? nullptr : mhandles[0]);
    return connection.post_receive(data[0], capacity_bytes, memory, out);
  });
}

Status test(void* request, int* done, int* sizes) {
  *done = 0;
  if (request == nullptr) return Status::invalid_argument;
  auto* slot = static_cast<Slot*>(request);
  if (slot->request == nullptr && slot->failure == Status::ok) return Status::invalid_argument;
  if (slot->request == nullptr) return slot->comm->note(slot->failure);
  if (!slot->request->done()) return Status::ok;
  // A failed request keeps its slot, so that asking again gives the same answer.
  if (const Status status = slot->request->status(); status != Status::ok) return slot->comm->note(status);
  if (sizes != nullptr) {
    sizes[0] = static_cast<int>(std::min<std::size_t>(slot->request->bytes(), INT_MAX));
  }
  *done = 1;
  slot->comm->connection().release(slot->request);
  slot->comm->give_slot(slot);
  return Status::ok;
}

}  // namespace weft::nccl
