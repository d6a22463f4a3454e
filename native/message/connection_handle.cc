// Starts messages of a connection through its backlog, and changes its policies through the process's board.
#include "native/message/connection_handle.h"

#include <new>
#include <utility>

#include "native/message/host_message.h"

namespace weft::message {

Status ConnectionHandle::start(Backlog::Way way, HostBuffer buffer, std::shared_ptr<HostMessage>* out) noexcept {
  try {
    if (!buffer.pieces.empty()) {
      const Status status = services_.backlog_thread->start();
      if (status != Status::ok) return status;
    }
    auto message =
        std::make_shared<HostMessage>(core_, way, std::move(buffer), services_.backlog_thread, services_.notifier);
    const Status status = backlog_->add(way, message);
    if (status == Status::ok) *out = std::move(message);
    return status;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

Status ConnectionHandle::change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                                       std::string* error) noexcept {
  try {
    return services_.board->change(family, text, what, &core_->flows(), core_->id(), error);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

std::vector<engine::PolicyInfo> ConnectionHandle::policies() const {
  return services_.board->describe(&core_->flows(), core_->id());
}

}  // namespace weft::message
