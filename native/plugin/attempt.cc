// Keeps the outcome of a connection attempt, for NCCL's next call or until the session releases it. What it held is
// destroyed outside the lock.
#include "native/plugin/attempt.h"

#include <utility>

namespace weft::nccl {

Attempt::Attempt(const void* context, const control::Handle& handle, std::shared_ptr<message::Runtime> runtime,
                 std::unique_ptr<message::Dial> dial)
    : context_(context), handle_(handle), held_{std::move(runtime), std::move(dial), nullptr} {}

Status Attempt::look() {
  if (failure_ != Status::would_block) return failure_;
  if (held_.connection != nullptr) return Status::ok;
  const Status status = held_.dial->poll(&held_.connection);
  if (status == Status::ok || status == Status::would_block) return status;
  failure_ = status;
  error_ = held_.dial->error();
  return status;
}

Status Attempt::poll(std::shared_ptr<message::Runtime>* runtime, std::shared_ptr<message::Connection>* connection,
                     std::string* error) {
  const std::lock_guard lock(mutex_);
  polled_ = true;
  const Status status = look();
  if (status == Status::ok) {
    *runtime = held_.runtime;
    *connection = std::move(held_.connection);
  } else if (status != Status::would_block) {
    *error = error_;
  }
  return status;
}

bool Attempt::release_if_failed() {
  Held released;
  const std::lock_guard lock(mutex_);
  look();
  if (failure_ == Status::would_block) return false;
  released = std::move(held_);
  return true;
}

bool Attempt::release_if_ended() {
  {
    const std::lock_guard lock(mutex_);
    const bool abandoned = !std::exchange(polled_, false);
    if (look() == Status::ok && abandoned) {
      Status ended = held_.connection->health();
      if (ended == Status::ok && held_.connection->closed_by_peer()) ended = Status::connection_closed;
      if (ended != Status::ok) error_ = "the peer has closed the connection";
      if (ended != Status::ok) failure_ = ended;
    }
  }
  return release_if_failed();
}

}  // namespace weft::nccl
