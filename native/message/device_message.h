// A send or receive of GPU memory: it waits in the backlog, or was posted to the worker of its GPU.
#pragma once

#include <memory>
#include <utility>

#include "native/message/backlog.h"
#include "native/message/device_worker.h"

namespace weft::message {

class DeviceMessage final : public DeviceRequest, public Post, public std::enable_shared_from_this<DeviceMessage> {
 public:
  // Takes ownership of the event and stream in `after`. `worker` must outlive the message.
  DeviceMessage(DeviceWorker* worker, const std::shared_ptr<Connection>& connection, gpu::Direction direction,
                std::shared_ptr<const gpu::Layout> layout, const After& after)
      : worker_(worker), connection_(connection), direction_(direction), layout_(std::move(layout)), after_(after) {}

  Status begin() noexcept override;
  void cancel(Status reason) noexcept override;
  bool overlaps(const void*, std::size_t) const noexcept override { return false; }

 private:
  DeviceWorker* const worker_;
  const std::weak_ptr<Connection> connection_;  // weak, because the connection's backlog holds this message
  const gpu::Direction direction_;
  const std::shared_ptr<const gpu::Layout> layout_;
  After after_;
};

}  // namespace weft::message
