// What the extension's objects hold: a runtime with the process that opened it, the memory of Python objects, requests.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "native/bind/unlocked.h"
#include "native/message/device_board.h"
#include "native/message/runtime.h"

namespace weft::bind {

namespace py = pybind11;

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kSliceNs = 50'000'000;  // the longest that Ctrl-C waits
// For copies of a device when a connection ends: they take milliseconds, and this keeps a defect from being a hang.
constexpr std::chrono::seconds kCopiesEnd{5};

inline int code(Status status) { return static_cast<int>(status); }

// The memory of a Python object, held until the last owner lets go. Made and dropped under the GIL.
class Buffer {
 public:
  Buffer(const py::object& object, const std::string& argument, bool writable) {
    PyObject* const raw = object.ptr();
    if (PyObject_GetBuffer(raw, &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) return;
    PyErr_Clear();
    const std::string type = Py_TYPE(raw)->tp_name;
    if (PyObject_CheckBuffer(raw) == 0) {
      throw py::type_error(argument + ": needs an object with a buffer (bytes, bytearray, numpy array), not " + type);
    }
    Py_buffer any;
    const bool contiguous = PyObject_GetBuffer(raw, &any, PyBUF_SIMPLE) == 0;
    if (contiguous) PyBuffer_Release(&any);
    PyErr_Clear();
    throw py::value_error(argument + (contiguous ? ": this " + type + " is read-only, and must be writable"
                                                 : ": this " + type + " is not contiguous in memory"));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }
  void* data() const { return view_.buf; }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// The runtime and the process that opened it: a forked child has no engine threads to stop and leaves all as it is.
class Home {
 public:
  Home(std::shared_ptr<engine::Runtime> runtime, const engine::DeviceLimits& limits)
      : runtime_(std::move(runtime)),
        devices_(std::make_shared<engine::DeviceBoard>("libcuda.so.1", limits,
                                                       [runtime = runtime_.get()] { runtime->notify(); })) {}
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  ~Home() {
    if (forked()) {
      new std::shared_ptr<engine::Runtime>(runtime_);
      new std::shared_ptr<engine::DeviceBoard>(devices_);
    } else {
      const Unlocked others_run;
      devices_.reset();  // first: what it carries holds connections
      runtime_.reset();
    }
  }
  engine::Runtime& runtime() const { return *runtime_; }
  engine::DeviceBoard& devices() const { return *devices_; }
  bool forked() const { return getpid() != pid_; }

 private:
  std::shared_ptr<engine::Runtime> runtime_;
  std::shared_ptr<engine::DeviceBoard> devices_;
  pid_t pid_ = getpid();
};

// Registered memory, let go when nobody holds it any more: its owner, or a request that is not done.
class RegisteredMemory {
 public:
  // `owner` keeps the memory where it is. Takes some time, with the GIL released.
  RegisteredMemory(std::shared_ptr<Home> home, std::shared_ptr<const void> owner, const datapath::Memory& memory)
      : home_(std::move(home)), owner_(std::move(owner)), data_(memory.data), bytes_(memory.bytes) {
    const Unlocked others_run;
    static_cast<void>(home_->runtime().register_memory(memory, &id_));
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() {
    if (home_->forked()) {
      new std::shared_ptr<const void>(owner_);
    } else {
      const Unlocked others_run;
      home_->runtime().deregister_memory(id_);
    }
  }
  std::uint32_t id() const { return id_; }
  const Home* home() const { return home_.get(); }
  std::size_t bytes() const { return bytes_; }
  bool holds(const void* part, std::size_t bytes) const {
    const auto from = reinterpret_cast<std::uintptr_t>(data_);
    const auto at = reinterpret_cast<std::uintptr_t>(part);
    return bytes == 0 || (at >= from && at + bytes <= from + bytes_);
  }

 private:
  std::shared_ptr<Home> home_;
  std::shared_ptr<const void> owner_;
  const std::uint8_t* data_;
  std::size_t bytes_;
  std::uint32_t id_ = 0;
};
using Registered = std::shared_ptr<RegisteredMemory>;

// Sleeps in `wait_ns(how long)` until `done()`: ok; timed_out: not yet; a negative timeout waits for ever. Signals are
// served between slices: *interrupted says that one raised.
template <class Done, class Wait>
Status wait_in_slices(std::int64_t timeout_ns, const Done& done, const Wait& wait_ns, bool* interrupted) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const std::int64_t past_ns = std::chrono::nanoseconds(Clock::now() - begin).count();
    const std::int64_t left_ns = timeout_ns < 0 ? kSliceNs : std::max<std::int64_t>(timeout_ns - past_ns, 0);
    Status result = Status::timed_out;
    {
      const Unlocked others_run;
      result = wait_ns(std::min(left_ns, kSliceNs));
    }
    if (done()) result = Status::ok;
    *interrupted = result == Status::timed_out && PyErr_CheckSignals() != 0;
    if (*interrupted || result != Status::timed_out || (timeout_ns >= 0 && left_ns <= kSliceNs)) return result;
  }
}

// A posted request. What it holds is let go when it is done; should it never be, the memory stays held.
class Posted {
 public:
  Posted(std::shared_ptr<Home> home, std::shared_ptr<engine::Connection> connection, std::shared_ptr<const void> buffer,
         Registered memory)
      : home_(std::move(home)),
        connection_(std::move(connection)),
        buffer_(std::move(buffer)),
        memory_(std::move(memory)) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  ~Posted() {
    if (settled()) return;
    new std::shared_ptr<const void>(buffer_);
    new Registered(memory_);
  }

  void began(engine::Request* request) { request_ = request; }
  bool done() const { return request_ == nullptr || request_->done(); }
  Status status() const { return request_ == nullptr ? status_ : request_->status(); }
  std::size_t bytes() const { return request_ == nullptr ? bytes_ : request_->bytes(); }

  // Gives a done request back, unless a thread is about to look at it.
  bool settled() {
    if (request_ == nullptr) return true;
    if (waiters_ > 0 || !request_->done()) return false;
    status_ = request_->status();
    bytes_ = request_->bytes();
    if (!home_->forked()) connection_->release(request_);
    request_ = nullptr;
    buffer_.reset();
    memory_.reset();
    return true;
  }

  // As wait_in_slices().
  Status wait(std::int64_t timeout_ns) {
    if (done()) return settled(), Status::ok;
    if (home_->forked()) return Status::forked_child;
    ++waiters_;
    bool interrupted = false;
    const Status result = wait_in_slices(
        timeout_ns, [this] { return request_->done(); },
        [this](std::int64_t slice_ns) { return connection_->wait(request_, slice_ns); }, &interrupted);
    --waiters_;
    settled();
    if (interrupted) throw py::error_already_set();
    return result;
  }

 private:
  std::shared_ptr<Home> home_;
  std::shared_ptr<engine::Connection> connection_;
  std::shared_ptr<const void> buffer_;  // a Buffer, or a DeviceBuffer
  Registered memory_;                   // null: the buffer is not registered
  engine::Request* request_ = nullptr;
  int waiters_ = 0;
  Status status_ = Status::ok;
  std::size_t bytes_ = 0;
};

}  // namespace weft::bind
