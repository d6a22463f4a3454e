// Objects that keep the runtime, the memory of Python objects and requests alive while the extension uses them.
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
#include "native/message/host_message.h"
#include "native/message/runtime.h"

namespace weft::bind {

namespace py = pybind11;

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kSliceNs = 50'000'000;  // a waiting call checks for signals (Ctrl-C) at least this often

inline int code(Status status) { return static_cast<int>(status); }

// Keeps a Python object alive and gives access to its memory. The GIL must be held when it is created or destroyed,
// because that changes the reference count of the Python object.
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
  // The memory of an object, or null if it has no contiguous (and writable) buffer. No error is set.
  static std::shared_ptr<Buffer> plain(const py::object& object, bool writable) {
    Py_buffer view;
    if (PyObject_GetBuffer(object.ptr(), &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) {
      return std::make_shared<Buffer>(view);
    }
    PyErr_Clear();
    return nullptr;
  }
  explicit Buffer(const Py_buffer& view) : view_(view) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }
  void* data() const { return view_.buf; }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// The runtime and the id of the process that opened it. A forked child has no engine threads, so there the runtime is
// leaked instead of destroyed.
class Home {
 public:
  explicit Home(std::shared_ptr<message::Runtime> runtime) : runtime_(std::move(runtime)) {}
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  ~Home() {
    if (forked()) {
      new std::shared_ptr<message::Runtime>(runtime_);
    } else {
      const Unlocked others_run;
      runtime_->close_gpus();
      runtime_.reset();
    }
  }
  message::Runtime& runtime() const { return *runtime_; }
  message::DeviceBoard& devices() const { return *runtime_->gpus(); }
  bool forked() const { return getpid() != pid_; }

 private:
  std::shared_ptr<message::Runtime> runtime_;
  pid_t pid_ = getpid();
};

// Registered memory. It is deregistered when neither its owner nor a pending request refers to it any more.
class RegisteredMemory {
 public:
  // Registers the memory, with the GIL released because that is slow. `owner` keeps the memory valid.
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

// Waits in short slices until done() returns true, and handles signals between them. Returns ok, or timed_out after
// `timeout_ns` (negative: no limit). *interrupted is set if a signal handler raised an exception.
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

// A send or receive of host memory. It keeps its buffer alive until it is done. If it is destroyed before that, the
// buffer is never freed, because the engines may still use it.
class Posted {
 public:
  Posted(std::shared_ptr<Home> home, std::shared_ptr<const void> buffer, Registered memory)
      : home_(std::move(home)), buffer_(std::move(buffer)), memory_(std::move(memory)) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  ~Posted() {
    if (settled()) return;
    new std::shared_ptr<const void>(buffer_);
    new Registered(memory_);
  }

  Status begin(message::Connection& connection, message::Backlog::Direction direction, message::HostBuffer buffer) {
    return connection.start(direction, std::move(buffer), &message_);
  }
  bool done() const { return message_ == nullptr || message_->done(); }
  Status status() const { return message_ == nullptr ? status_ : message_->status(); }
  std::size_t bytes() const { return message_ == nullptr ? bytes_ : message_->done() ? message_->bytes() : 0; }
  // Bytes transferred if the request succeeded; -1 until it is done; -2 minus the status code if it failed.
  std::int64_t outcome() {
    if (!settled()) return -1;
    if (const Status result = status(); result != Status::ok) return -2 - code(result);
    return static_cast<std::int64_t>(bytes());
  }
  // Whether the request is done. If so, keeps the result only.
  bool settled() {
    if (!done()) return false;
    status_ = status();
    bytes_ = bytes();
    message_.reset();
    buffer_.reset();
    memory_.reset();
    home_.reset();
    return true;
  }
  void quiesce(message::Connection& connection) {
    const std::shared_ptr<message::HostMessage> message = message_;
    const Unlocked others_run;
    if (message != nullptr) connection.quiesce(message.get());
  }

  // Waits until the request is done: ok, timed_out, or forked_child. A negative timeout waits without a limit.
  Status wait(std::int64_t timeout_ns) {
    if (done()) return settled(), Status::ok;
    // Keeps the endpoint alive, because this thread runs the loops of its engines: meanwhile another thread may see
    // that the request is done, drop the request's reference and close the endpoint.
    const std::shared_ptr<Home> home = home_;
    const std::shared_ptr<message::HostMessage> message = message_;
    if (home->forked()) return Status::forked_child;
    bool interrupted = false, polls = true;
    const Status result = wait_in_slices(
        timeout_ns, [&] { return message->done(); },
        [&](std::int64_t slice_ns) {
          return std::exchange(polls, false) ? message->wait(slice_ns) : message->sleep(slice_ns);
        },
        &interrupted);
    settled();
    if (interrupted) throw py::error_already_set();
    return result;
  }

 private:
  std::shared_ptr<Home> home_;
  std::shared_ptr<const void> buffer_;  // the memory of the message: one or more Buffer objects, or a DeviceBuffer
  Registered memory_;                   // null: the buffer is not registered
  std::shared_ptr<message::HostMessage> message_;  // null: the request has not begun, or its result is kept below
  Status status_ = Status::ok;
  std::size_t bytes_ = 0;
};

}  // namespace weft::bind
