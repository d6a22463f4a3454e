// GPU buffers and requests as Python sees them. A buffer keeps the Python object that owns its memory alive.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/bind/held.h"
#include "native/message/device_board.h"
#include "native/message/device_memory.h"
#include "native/message/device_message.h"

namespace weft::bind {

using DeviceRun = std::pair<std::uint64_t, std::uint64_t>;  // address and size in bytes of a range

// A CUDA stream borrowed from weft. The library that produced an array makes the stream wait for the work that writes
// the array.
class LentStream {
 public:
  LentStream(std::shared_ptr<Home> home, message::DeviceWorker* worker, gpu::Stream stream)
      : home_(std::move(home)), worker_(worker), stream_(stream) {}
  LentStream(const LentStream&) = delete;
  LentStream& operator=(const LentStream&) = delete;
  ~LentStream() {
    if (stream_ != nullptr && !home_->forked()) worker_->drop({nullptr, stream_});
  }
  std::uint64_t handle() const { return reinterpret_cast<std::uintptr_t>(stream_); }
  const message::DeviceWorker* worker() const { return worker_; }
  gpu::Stream give_up() { return std::exchange(stream_, nullptr); }

 private:
  std::shared_ptr<Home> home_;
  message::DeviceWorker* worker_;
  gpu::Stream stream_;
};

// GPU memory of one device and the Python object that owns it. The GIL must be held when it is created or destroyed,
// because that changes the reference count of the Python object.
class DeviceBuffer {
 public:
  DeviceBuffer(std::shared_ptr<Home> home, py::object owner, std::shared_ptr<const gpu::Layout> layout,
               message::DeviceWorker* worker)
      : home_(std::move(home)), owner_(std::move(owner)), layout_(std::move(layout)), worker_(worker) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { forget_stream(); }

  const std::shared_ptr<Home>& shared_home() const { return home_; }
  const Home* home() const { return home_.get(); }
  std::uint64_t bytes() const { return layout_->bytes(); }
  bool lies_with(const DeviceBuffer& other) const { return worker_ == other.worker_; }
  message::DeviceWorker& worker() const { return *worker_; }
  // Makes accesses to the buffer wait for the work that is now queued on `stream`. Returns (status, error).
  py::tuple come_after(std::uint64_t stream);
  py::tuple come_after_lent(LentStream& lent_stream);
  Status post(const std::shared_ptr<message::Connection>& connection, bool receive,
              std::shared_ptr<message::DeviceMessage>* out);
  const gpu::Layout& layout() const { return *layout_; }
  std::uint8_t* data() const { return message::contiguous(*layout_); }
  // Sleeps until the work that come_after() recorded is done, and handles signals meanwhile. Returns (status, error).
  py::tuple await_stream();
  gpu::Event event() const { return after_.event; }

 private:
  void forget_stream();

  std::shared_ptr<Home> home_;
  py::object owner_;
  std::shared_ptr<const gpu::Layout> layout_;
  message::DeviceWorker* worker_;  // owned by the runtime's DeviceBoard
  message::After after_;
};

// A send or receive of device memory. It keeps its buffer alive until it is done. If it is destroyed before that, the
// buffer is never freed, because the engines may still use it.
class DevicePosted {
 public:
  explicit DevicePosted(std::shared_ptr<DeviceBuffer> buffer) : buffer_(std::move(buffer)) {}
  DevicePosted(const DevicePosted&) = delete;
  DevicePosted& operator=(const DevicePosted&) = delete;
  ~DevicePosted() {
    if (!settled()) new std::shared_ptr<DeviceBuffer>(buffer_);
  }

  // Posts the request, with the GIL released. done() is false until begin() returns.
  Status begin(const std::shared_ptr<message::Connection>& connection, bool receive) {
    std::shared_ptr<message::DeviceMessage> made;
    const Status status = buffer_->post(connection, receive, &made);
    request_ = std::move(made);
    refused_ = request_ == nullptr;
    return status;
  }
  void quiesce(message::Connection& connection) {
    const std::shared_ptr<message::DeviceMessage> request = request_;
    const Unlocked others_run;
    if (request != nullptr) connection.quiesce(request.get());
  }
  bool done() const { return request_ == nullptr ? refused_ : request_->done(); }
  Status status() const { return request_ == nullptr ? Status::ok : request_->status(); }
  std::size_t bytes() const { return request_ == nullptr ? 0 : request_->bytes(); }
  std::string error() const { return request_ != nullptr && request_->done() ? request_->error() : ""; }
  bool settled() {
    if (!done()) return false;
    buffer_.reset();
    return true;
  }
  Status wait(std::int64_t timeout_ns);
  // Makes a CUDA stream wait until the request is done. Returns (status, error).
  py::tuple wait_on(std::uint64_t stream);

 private:
  std::shared_ptr<DeviceBuffer> buffer_;
  std::shared_ptr<message::DeviceMessage> request_;  // null: begin() has not returned yet, or the post was refused
  bool refused_ = false;
};
using DeviceLane = std::list<std::shared_ptr<DevicePosted>>;

// Lends one of weft's CUDA streams of the device. Returns (status, error, lent_stream).
py::tuple lend_stream(const std::shared_ptr<Home>& home, int device);

// Registers device memory with the NICs, by its dma-buf or by its address. If neither works, the id is 0 and messages
// go through a bounce buffer.
Registered register_device(const std::shared_ptr<DeviceBuffer>& buffer);

// Queues out = a op b on a stream; the result is also written to `also` unless that is null. All buffers must have the
// same size and device. Returns (status, error).
py::tuple reduce(const std::string& type, const std::string& operation, const DeviceBuffer& a, const DeviceBuffer& b,
                 const DeviceBuffer& out, const DeviceBuffer* also, std::uint64_t stream);

// Makes a buffer of the memory ranges `runs`, which `owner` keeps alive. Returns (status, error, buffer).
py::tuple hold_device(const std::shared_ptr<Home>& home, const py::object& owner, const std::vector<DeviceRun>& runs,
                      int device);

}  // namespace weft::bind
