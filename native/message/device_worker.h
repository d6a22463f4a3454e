// Sends and receives memory of one device: a thread that takes rings from a pinned pool, has a copier fill and empty
// them, and completes messages. The engines transfer the stages.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/gpu/copier.h"
#include "native/gpu/dmabuf.h"
#include "native/gpu/pinned_pool.h"
#include "native/gpu/ring_shape.h"
#include "native/message/intake_streams.h"
#include "native/message/outcome.h"
#include "native/message/pinned_pools.h"
#include "native/message/runtime.h"
#include "native/message/stream_waits.h"

namespace weft::message {

struct DeviceLimits {
  std::size_t pool_bytes = 256 << 20;       // pinned memory for all messages of the device
  std::size_t ring_bytes_max = 32 << 20;    // largest ring of a part of a message: a window, and the bytes being copied
  const void* image = gpu::kernel_image();  // of the kernels; null: no kernels
};

// A message in progress, shared by its caller and the worker. ok: a receive's bytes are on the device, or the peer has
// a send's bytes.
class DeviceRequest : public Outcome {
 public:
  // The device's error message, if the device failed. Valid once done.
  const std::string& error() const noexcept { return error_; }

 private:
  friend class DeviceWorker;
  void finish(Status status, std::size_t bytes, const std::string& error) noexcept;
  std::vector<std::uint32_t*> words_;  // of streams that wait for it; guarded by the worker's mutex
  std::string error_;
};

class DeviceWorker {
 public:
  // `on_done` runs on the worker's thread whenever a request is done. Null with `error`.
  static std::unique_ptr<DeviceWorker> open(const gpu::Driver& driver, int device, const DeviceLimits& limits,
                                            std::function<void()> on_done, std::string* error);
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;
  // Aborts messages in progress, which ends their connections, and waits for copies.
  ~DeviceWorker();

  // Any thread; messages of a connection match in the order of the calls. The memory must stay valid until the request
  // is done. Takes ownership of `after` if it returns ok. A device error ends the connection, because the peer cannot
  // be notified of missing bytes. would_block: the rings are full, or no pinned memory is free and the connection has a
  // message in progress; try again.
  Status post(const std::shared_ptr<Connection>& connection, gpu::Way way, std::shared_ptr<const gpu::Layout> layout,
              const After& after, const std::shared_ptr<DeviceRequest>& request) noexcept;
  // Ends a request that was not posted.
  void cancel(const std::shared_ptr<DeviceRequest>& request, Status reason) noexcept;
  // Work queued on `stream` from now on runs after the request is done, whether it succeeded or not; no thread waits.
  Status wait_on(const std::shared_ptr<DeviceRequest>& request, gpu::Stream stream, std::string* error) noexcept;
  // Queues a reduction on `stream`. device_unavailable: there are no kernels; `error` has the reason. It runs after
  // `events`.
  Status reduce(gpu::ElementType type, gpu::Operation operation, const gpu::Reduction& reduction, gpu::Stream stream,
                const std::vector<gpu::Event>& events, std::string* error) noexcept;
  // An event after all work queued on `stream`; null if that work is done. Otherwise `error` and invalid_argument (the
  // stream cannot be used here) or device_error.
  Status mark(gpu::Stream stream, gpu::Event* out, std::string* error) noexcept;
  // A stream of this library that a producer of memory can order after its own work. Null with `error`.
  gpu::Stream lend_intake(std::string* error) noexcept;
  void drop(const After& after) noexcept;
  // ok: the work before a mark is done; would_block: not yet; device_error with `error`.
  Status passed(gpu::Event mark, std::string* error) noexcept;
  gpu::DmaBuf export_dmabuf(gpu::Address address, std::uint64_t bytes) noexcept;
  bool has_kernels() const noexcept { return copier_->shared().kernels() != nullptr; }
  std::size_t pinned_bytes() const;       // the pool, and the memory added beside it
  std::size_t pinned_bytes_lent() const;  // in use

 private:
  class Job;
  DeviceWorker(const gpu::Driver& driver, const DeviceLimits& limits, std::function<void()> on_done);
  bool start(int device, std::string* error);
  bool lend(Job* job);
  bool take_rings(Job* job, const gpu::RingShape& shape);
  void take_table(Job* job);
  bool pin_beside();
  void run() noexcept;
  bool poll(Job* job);
  void begin(Job* job);
  void finish(Job* job) noexcept;
  void sleep_a_while(bool busy) noexcept;

  const gpu::Driver& driver_;
  const DeviceLimits limits_;
  const std::function<void()> on_done_;
  std::unique_ptr<gpu::Copier> copier_;  // used by the thread only, once it runs
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  PinnedPools pools_;
  std::list<std::unique_ptr<Job>> fresh_;  // not yet taken by the thread
  std::vector<Job*> under_way_;            // all jobs, in the order of their posts
  std::unique_ptr<StreamWaits> waits_;
  std::unique_ptr<IntakeStreams> intakes_;
  bool stopping_ = false;
  std::list<std::unique_ptr<Job>> jobs_;  // used by the thread only
  std::thread thread_;
};

}  // namespace weft::message
