// Starts the messages of a connection, waits for copies when it ends, and changes its policies.
#include "native/message/connection_handle.h"

#include <new>
#include <utility>

namespace weft::message {

Status ConnectionHandle::start(Backlog::Direction direction, HostBuffer buffer,
                               std::shared_ptr<HostMessage>* out) noexcept {
  try {
    if (!buffer.pieces.empty()) {
      const Status status = services_.backlog_thread->start();
      if (status != Status::ok) return status;
    }
    auto message = std::make_shared<HostMessage>(core_, direction, std::move(buffer), services_.backlog_thread,
                                                 services_.notifier);
    if (message->in_pieces()) in_pieces_.add(message);
    const Status status = backlog_->add(direction, message);
    if (status != Status::ok && !message->done()) message->cancel(status);
    if (status == Status::ok) *out = std::move(message);
    return status;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

Status ConnectionHandle::start(Backlog::Direction direction, const std::shared_ptr<DeviceMessage>& message) noexcept {
  try {
    on_device_.add(message);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  return backlog_->add(direction, message);
}

void ConnectionHandle::await_copies() noexcept {
  const std::int64_t until_ns = engine::later_ns(engine::now_ns(), kCopiesEndNs);
  in_pieces_.await(until_ns, [](const HostMessage&) { return true; });
  on_device_.await(until_ns, [](const DeviceMessage&) { return true; });
}

void ConnectionHandle::quiesce(const void* data, std::size_t bytes) noexcept {
  backlog_->withdraw(data, bytes);
  core_->quiesce(data, bytes);
  in_pieces_.await(engine::later_ns(engine::now_ns(), kCopiesEndNs),
                   [&](const HostMessage& message) { return message.overlaps(data, bytes); });
}

void ConnectionHandle::quiesce(DeviceMessage* message) noexcept {
  if (message->done() || backlog_->withdraw(message)) return;
  close();
  on_device_.await(engine::later_ns(engine::now_ns(), kCopiesEndNs),
                   [&](const DeviceMessage& each) { return &each == message; });
}

void ConnectionHandle::quiesce(HostMessage* message) noexcept {
  if (message->done() || backlog_->withdraw(message)) return;
  close();
  in_pieces_.await(engine::later_ns(engine::now_ns(), kCopiesEndNs),
                   [&](const HostMessage& each) { return &each == message; });
}

Status ConnectionHandle::change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                                       std::string* error, std::int64_t engine) noexcept {
  try {
    if (core_->port() != nullptr) {
      *error =
          "messages of this connection pass through shared memory, where policies play no part: WEFT_LOCAL=off, or "
          "policies given to connect() or listen(), keep them on the network";
      return Status::invalid_argument;
    }
    const std::vector<engine::FlowRef> flows = core_->flows_on(engine);
    return flows.empty() ? Status::ok : services_.board->change(family, text, what, &flows, core_->id(), error);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

std::vector<engine::PolicyInfo> ConnectionHandle::policies() const {
  return services_.board->describe(&core_->flows(), core_->id());
}

}  // namespace weft::message
