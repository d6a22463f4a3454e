// The GPUs whose memory a process sends and receives: finds out which GPU a buffer is on, and starts a worker per GPU
// at its first use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "native/message/device_worker.h"

namespace weft::message {

class DeviceBoard {
 public:
  // `on_done`: as for DeviceWorker. `library`: "libcuda.so.1", except in tests.
  DeviceBoard(std::string library, const DeviceLimits& limits, std::function<void()> on_done)
      : library_(std::move(library)), limits_(limits), on_done_(std::move(on_done)) {}

  // Any thread. The worker of the device that contains the layout; it lives as long as this object. Otherwise `error`,
  // and device_unavailable: no driver, no GPU, or no worker for it; or invalid_argument: the memory is not all on one
  // device.
  Status worker_of(const gpu::Layout& layout, DeviceWorker** out, std::string* error) noexcept;
  // The worker of the n-th GPU, in the driver's numbering.
  Status worker_at(int device, DeviceWorker** out, std::string* error) noexcept;

 private:
  Status open(const gpu::Driver& driver, int device, DeviceWorker** out, std::string* error);

  const std::string library_;
  const DeviceLimits limits_;
  const std::function<void()> on_done_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<DeviceWorker>> workers_;
};

}  // namespace weft::message
