// Sends and receives memory of one GPU. A thread lets a copier fill and empty bounce buffers in pinned memory and
// completes messages; the engines transfer the bounce buffers.
#pragma once

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
#include "native/message/device_loans.h"
#include "native/message/lent_streams.h"
#include "native/message/outcome.h"
#include "native/message/pinned_pools.h"
#include "native/message/runtime.h"
#include "native/message/stream_waits.h"

namespace weft::message {

struct DeviceLimits {
  std::size_t pool_bytes = 256 << 20;       // size of the pinned memory for all messages of the device
  std::size_t ring_bytes_max = 32 << 20;    // largest ring of a stripe
  const void* image = gpu::kernel_image();  // the compiled kernels; null: no kernels are used
};

// A message in progress, shared by its caller and the worker. It is done with ok when the received bytes are on the
// device, or when the peer has all bytes of a send.
class DeviceRequest : public Outcome {
 public:
  // The device's error message if the device failed, else empty. Valid when the request is done.
  const std::string& error() const noexcept { return error_; }

 private:
  friend class DeviceWorker;
  void finish(Status status, std::size_t bytes, const std::string& error) noexcept;
  std::vector<std::uint32_t*> words_;  // memory words on which streams wait for this request; under the worker's mutex
  std::string error_;
};

class DeviceWorker {
 public:
  // Starts a worker. `on_done` is called on the worker's thread whenever a request is done. Returns null and sets
  // `error` on failure.
  static std::unique_ptr<DeviceWorker> open(const gpu::Driver& driver, int device, const DeviceLimits& limits,
                                            std::function<void()> on_done, std::string* error);
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;
  // Aborts the messages in progress, closes their connections, and waits until all copies have ended.
  ~DeviceWorker();

  // Posts a message, from any thread. The memory must stay valid until the request is done. If the result is ok, the
  // worker owns `after`. would_block: there is no room in the engines or no free pinned memory; try again later. A
  // device error ends the connection, because the peer would wait for missing bytes.
  Status post(const std::shared_ptr<Connection>& connection, gpu::Direction direction,
              std::shared_ptr<const gpu::Layout> layout, const After& after,
              const std::shared_ptr<DeviceRequest>& request) noexcept;
  // Ends a request that was not posted, with the given reason.
  void cancel(const std::shared_ptr<DeviceRequest>& request, Status reason) noexcept;
  // Makes work that is queued on `stream` from now on wait until the request is done, even if it fails. No thread
  // waits.
  Status wait_on(const std::shared_ptr<DeviceRequest>& request, gpu::Stream stream, std::string* error) noexcept;
  // Queues a reduction on `stream`, to run after `events`. device_unavailable: there are no kernels, and `error` states
  // the reason.
  Status reduce(gpu::ElementType type, gpu::Operation operation, const gpu::Reduction& reduction, gpu::Stream stream,
                const std::vector<gpu::Event>& events, std::string* error) noexcept;
  // Records an event after all work that is queued on `stream`; *out is null if that work is done. On failure sets
  // `error`. invalid_argument: the stream belongs to another device.
  Status mark(gpu::Stream stream, gpu::Event* out, std::string* error) noexcept;
  // Lends one of weft's CUDA streams. The caller passes it to the producer of an array (__dlpack__(stream=...)), which
  // makes the stream wait for the work that writes the array. Returns null and sets `error` on failure.
  gpu::Stream lend_stream(std::string* error) noexcept;
  void drop(const After& after) noexcept;
  // Whether the work before an event of mark() is done: ok, would_block (not yet), or device_error with `error` set.
  Status passed(gpu::Event mark, std::string* error) noexcept;
  gpu::DmaBuf export_dmabuf(gpu::Address address, std::uint64_t bytes) noexcept;
  bool has_kernels() const noexcept { return copier_->shared().kernels() != nullptr; }
  std::size_t pinned_bytes() const;       // size of all pools together
  std::size_t pinned_bytes_lent() const;  // bytes in use by messages

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
  static bool copy_loan(Job* job, DeviceLoans* loans);
  void wake() noexcept;
  void finish(Job* job) noexcept;
  void sleep_a_while(bool busy) noexcept;

  const gpu::Driver& driver_;
  const DeviceLimits limits_;
  const std::function<void()> on_done_;
  std::unique_ptr<gpu::Copier> copier_;  // after the worker's thread has started, only this thread uses it
  mutable std::mutex mutex_;
  std::atomic<std::int32_t> wakes_{0};  // counts the reasons for the thread to look again
  std::atomic<bool> asleep_{false};
  PinnedPools pools_;
  std::list<std::unique_ptr<Job>> fresh_;  // posted jobs that the thread has not taken yet
  std::vector<Job*> under_way_;            // all unfinished jobs, in the order of their posts
  std::unique_ptr<StreamWaits> waits_;
  std::unique_ptr<LentStreams> lent_streams_;
  bool stopping_ = false;
  std::unique_ptr<DeviceLoans> loans_;
  std::list<std::unique_ptr<Job>> jobs_;  // jobs in progress; only the worker's thread uses this list
  std::thread thread_;
};

}  // namespace weft::message
