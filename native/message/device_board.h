// The GPUs whose memory a process sends and receives. Finds the GPU of a buffer, and starts a worker for each GPU at
// its first use.
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
  // `library`: the CUDA driver, "libcuda.so.1" except in tests. `on_done`: called on a worker's thread whenever a
  // request is done.
  DeviceBoard(std::string library, const DeviceLimits& limits, std::function<void()> on_done)
      : library_(std::move(library)), limits_(limits), on_done_(std::move(on_done)) {}

  // Finds the worker of the device whose memory the layout describes; it lives as long as this object. On failure sets
  // `error`. device_unavailable: no driver, GPU or worker. invalid_argument: the memory is not on one device. May be
  // called from any thread.
  Status worker_of(const gpu::Layout& layout, DeviceWorker** out, std::string* error) noexcept;
  // Finds the worker of a GPU by the driver's number of the GPU.
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
