// Sends and receives of one device's memory: a thread that takes rings from a pinned pool, lets a copier fill and empty
// them, and tells callers when a message is where it belongs. Engines carry the stages.
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
  std::size_t pool_bytes = 256 << 20;       // pinned, for all messages of the device
  std::size_t ring_bytes_max = 32 << 20;    // of a part of a message: a window and what is being copied
  const void* image = gpu::kernel_image();  // of the kernels; null: there are none
};

// A message on its way, shared by its caller and the worker. ok: the bytes of a receive are on the device, those of a
// send are with the peer.
class DeviceRequest : public Outcome {
 public:
  // What the device said, where it was the device that failed. Valid once done.
  const std::string& error() const noexcept { return error_; }

 private:
  friend class DeviceWorker;
  void finish(Status status, std::size_t bytes, const std::string& error) noexcept;
  std::vector<std::uint32_t*> words_;  // of streams that wait for it; the worker's mutex
  std::string error_;
};

class DeviceWorker {
 public:
  // `on_done` runs in the worker's thread whenever a request is done. Null with `error`.
  static std::unique_ptr<DeviceWorker> open(const gpu::Driver& driver, int device, const DeviceLimits& limits,
                                            std::function<void()> on_done, std::string* error);
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;
  // Gives up what is under way, which ends its connections, and waits for the copies.
  ~DeviceWorker();

  // Any thread; messages of a connection match in the order of the calls. The memory must stay until the request is
  // done. `after` is the worker's once this returns ok. An error of the device ends the connection, as the peer cannot
  // be told that bytes do not come. would_block: rings are full, or no pinned memory is free and the connection has a
  // message under way: try again.
  Status post(const std::shared_ptr<Connection>& connection, gpu::Way way, std::shared_ptr<const gpu::Layout> layout,
              const After& after, const std::shared_ptr<DeviceRequest>& request) noexcept;
  // Ends a request that was not posted.
  void cancel(const std::shared_ptr<DeviceRequest>& request, Status reason) noexcept;
  // Has all that is handed to `stream` from now on run after the request is done, well or not; no thread waits.
  Status wait_on(const std::shared_ptr<DeviceRequest>& request, gpu::Stream stream, std::string* error) noexcept;
  // Queues a reduction on `stream`. device_unavailable: there are no kernels, `error` says why.
  // `events`: what comes first.
  Status reduce(gpu::ElementType type, gpu::Operation operation, const gpu::Reduction& reduction, gpu::Stream stream,
                const std::vector<gpu::Event>& events, std::string* error) noexcept;
  // An event behind all work that `stream` has, null where that is done. With `error`, invalid_argument: no stream for
  // this; or device_error.
  Status mark(gpu::Stream stream, gpu::Event* out, std::string* error) noexcept;
  // A stream of ours, for whoever made the memory to order after its own work. Null with `error`.
  gpu::Stream lend_intake(std::string* error) noexcept;
  void drop(const After& after) noexcept;
  // ok: the work before a mark is done; would_block: not yet; device_error with `error`.
  Status passed(gpu::Event mark, std::string* error) noexcept;
  gpu::DmaBuf export_dmabuf(gpu::Address address, std::uint64_t bytes) noexcept;
  bool has_kernels() const noexcept { return copier_->shared().kernels() != nullptr; }
  std::size_t pinned_bytes() const;       // the pool, and what heads of queues had to have beside it
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
  std::unique_ptr<gpu::Copier> copier_;  // the thread's, once it runs
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  PinnedPools pools_;
  std::list<std::unique_ptr<Job>> fresh_;  // not yet seen by the thread
  std::vector<Job*> under_way_;            // all, by the order of their posts
  std::unique_ptr<StreamWaits> waits_;
  std::unique_ptr<IntakeStreams> intakes_;
  bool stopping_ = false;
  std::list<std::unique_ptr<Job>> jobs_;  // the thread's
  std::thread thread_;
};

}  // namespace weft::message
