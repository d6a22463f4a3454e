// Posts a message of GPU memory to its worker, or cancels it.
#include "native/message/device_message.h"

namespace weft::message {

// shared_from_this() cannot throw: a shared pointer holds this object. NOLINTNEXTLINE(bugprone-exception-escape)
Status DeviceMessage::begin() noexcept {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr) return Status::connection_closed;
  const Status status = worker_->post(connection, direction_, layout_, after_, shared_from_this());
  if (status == Status::ok) after_ = {};
  return status;
}

// shared_from_this() cannot throw: a shared pointer holds this object. NOLINTNEXTLINE(bugprone-exception-escape)
void DeviceMessage::cancel(Status reason) noexcept {
  const After after = std::exchange(after_, {});
  if (after.event != nullptr || after.lent_stream != nullptr) worker_->drop(after);
  worker_->cancel(shared_from_this(), reason);
}

}  // namespace weft::message
