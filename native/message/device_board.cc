// Starts a DeviceWorker for each GPU that is used. If a worker cannot be started, the next use tries again, because
// enough memory may be free to pin by then.
#include "native/message/device_board.h"

#include "native/gpu/inspect.h"

namespace weft::message {

Status DeviceBoard::worker_of(const gpu::Layout& layout, DeviceWorker** out, std::string* error) noexcept try {
  *out = nullptr;
  const gpu::Driver* const driver = gpu::load_driver(library_.c_str(), error);
  if (driver == nullptr) return Status::device_unavailable;
  const int device = gpu::device_of(*driver, layout, error);
  if (device < 0) return Status::invalid_argument;
  return open(*driver, device, out, error);
} catch (const std::bad_alloc&) {
  *error = "out of memory";
  return Status::out_of_memory;
}

Status DeviceBoard::worker_at(int device, DeviceWorker** out, std::string* error) noexcept try {
  *out = nullptr;
  const gpu::Driver* const driver = gpu::load_driver(library_.c_str(), error);
  return driver == nullptr ? Status::device_unavailable : open(*driver, device, out, error);
} catch (const std::bad_alloc&) {
  *error = "out of memory";
  return Status::out_of_memory;
}

Status DeviceBoard::open(const gpu::Driver& driver, int device, DeviceWorker** out, std::string* error) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<DeviceWorker>& worker = workers_[device];
  if (worker == nullptr) worker = DeviceWorker::open(driver, device, limits_, on_done_, error);
  *out = worker.get();
  return worker != nullptr ? Status::ok : Status::device_unavailable;
}

}  // namespace weft::message
