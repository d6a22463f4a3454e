// Python bindings of the runtime: devices, listeners, connections, requests and their buffers. Most calls return a
// status; they raise only for unusable arguments.
#include "native/message/runtime.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "native/bind/bound_connection.h"
#include "native/bind/device.h"
#include "native/bind/held.h"
#include "native/bind/readable.h"
#include "native/bind/unlocked.h"

namespace weft::bind {
namespace {

// close() drops the reference to the runtime, even while another thread is in wait().
class BoundListener {
 public:
  BoundListener(std::shared_ptr<Home> home, std::unique_ptr<message::Listener> listener)
      : home_(std::move(home)), listener_(std::move(listener)), event_(listener_->event()) {}
  BoundListener(const BoundListener&) = delete;
  BoundListener& operator=(const BoundListener&) = delete;
  ~BoundListener() {
    if (home_ != nullptr && home_->forked()) static_cast<void>(listener_.release());
  }
  py::tuple accept() {
    std::shared_ptr<message::Connection> made;
    Status status = Status::connection_closed;
    if (home_ != nullptr) status = home_->forked() ? Status::forked_child : listener_->accept(&made);
    if (status != Status::ok) return py::make_tuple(code(status), nullptr);
    return py::make_tuple(code(status), std::make_unique<BoundConnection>(home_, std::move(made)));
  }
  void wait(std::int64_t timeout_ns) {
    if (home_ == nullptr || home_->forked()) return;
    const Unlocked others_run;
    event_->wait(timeout_ns);
  }
  void close() {
    if (home_ == nullptr || home_->forked()) return;
    const std::shared_ptr<Home> home = std::move(home_);  // destroyed last, with the GIL held: ~Home() releases the GIL
    std::unique_ptr<message::Listener> listener = std::move(listener_);
    const Unlocked others_run;
    listener.reset();
  }
  py::tuple trouble(std::int64_t within_ns) const {
    std::string text;
    const Status status = home_ == nullptr ? Status::ok : listener_->trouble(within_ns, &text);
    return py::make_tuple(code(status), text);
  }
  py::bytes handle() const {
    const control::Handle made = open()->handle();
    return {reinterpret_cast<const char*>(made.bytes), sizeof made.bytes};
  }
  std::uint16_t port() const { return open()->port(); }

 private:
  message::Listener* open() const {
    if (home_ == nullptr) throw py::value_error("the listener is closed");
    return listener_.get();
  }
  std::shared_ptr<Home> home_;  // null: closed
  std::unique_ptr<message::Listener> listener_;
  const std::shared_ptr<message::Event> event_;
};

// close() drops the reference to the runtime, even while another thread is in wait().
class BoundDial {
 public:
  BoundDial(std::shared_ptr<Home> home, std::unique_ptr<message::Dial> dial)
      : home_(std::move(home)), dial_(std::move(dial)), event_(dial_->event()) {}
  BoundDial(const BoundDial&) = delete;
  BoundDial& operator=(const BoundDial&) = delete;
  ~BoundDial() {
    // In a forked child the dial is leaked, because the threads that it needs do not exist there.
    if (home_ != nullptr && home_->forked()) static_cast<void>(new std::shared_ptr<message::Dial>(std::move(dial_)));
  }
  void wait(std::int64_t timeout_ns) {
    if (home_ == nullptr || home_->forked()) return;
    std::shared_ptr<message::Dial> helped = dial_;
    const bool first = !std::exchange(waited_, true);
    const Unlocked others_run;
    const std::int64_t until_ns = engine::now_ns() + timeout_ns;
    // After help(), this thread sleeps: a peer that has not answered by then is so slow that the time to wake a thread
    // does not matter.
    if (first) helped->help(timeout_ns);
    helped.reset();
    event_->wait(std::max<std::int64_t>(until_ns - engine::now_ns(), 0));
  }
  void close() {
    if (home_ == nullptr || home_->forked()) return;
    const std::shared_ptr<Home> home = std::move(home_);  // destroyed last, with the GIL held: ~Home() releases the GIL
    std::shared_ptr<message::Dial> dial = std::move(dial_);
    const Unlocked others_run;
    dial->close();
    // Waits until no other thread is in help(), so that the last reference to the runtime is not dropped there.
    for (int i = 0; dial.use_count() > 1 && i < kHelperTries; ++i) std::this_thread::sleep_for(kHelperPause);
    dial.reset();
  }
  py::tuple poll() {
    std::shared_ptr<message::Connection> made;
    Status status = Status::cancelled;
    if (home_ != nullptr) status = home_->forked() ? Status::forked_child : dial_->poll(&made);
    if (status != Status::ok) return py::make_tuple(code(status), nullptr);
    return py::make_tuple(code(status), std::make_unique<BoundConnection>(home_, std::move(made)));
  }
  std::string error() const { return usable() ? dial_->error() : ""; }
  int cause() const { return code(usable() ? dial_->cause() : Status::would_block); }

 private:
  static constexpr int kHelperTries = 1'000;
  static constexpr std::chrono::milliseconds kHelperPause{1};
  bool usable() const { return home_ != nullptr && !home_->forked(); }

  std::shared_ptr<Home> home_;  // null: closed
  std::shared_ptr<message::Dial> dial_;
  const std::shared_ptr<message::Event> event_;
  bool waited_ = false;
};

// The runtime as Python holds it. Listeners and connections keep the native runtime alive after close().
struct BoundRuntime {
  std::shared_ptr<Home> home;

  const std::shared_ptr<Home>& open() const {
    if (home == nullptr) throw py::value_error("the endpoint is closed");
    return home;
  }
  template <class Bound, class Native, class Call>
  py::tuple make(const Call& call) const {
    std::unique_ptr<Native> made;
    std::string error;
    Status status = Status::forked_child;
    const std::shared_ptr<Home> held = open();  // a reference, because another thread may close the endpoint
    if (!held->forked()) {
      const Unlocked others_run;
      status = call(held->runtime(), &made, &error);
    }
    if (status != Status::ok) return py::make_tuple(code(status), error, nullptr);
    return py::make_tuple(code(status), error, std::make_unique<Bound>(held, std::move(made)));
  }
  py::tuple listen(int device, std::uint16_t port, const std::string& policies, bool open) const {
    return make<BoundListener, message::Listener>([&](message::Runtime& runtime, auto* out, std::string* error) {
      return runtime.listen(device, port, open, policies, out, error);
    });
  }
  py::tuple connect_handle(int device, const py::bytes& handle, const std::string& policies) const {
    const auto text = static_cast<std::string>(handle);
    control::Handle native;
    if (text.size() != control::kHandleBytes && text.size() != control::kOldHandleBytes)
      throw py::value_error("handle: needs the 80 bytes of a listener's handle, or the 64 of an older weft's");
    std::memcpy(native.bytes, text.data(), text.size());
    return make<BoundDial, message::Dial>([&](message::Runtime& runtime, auto* out, std::string* error) {
      return runtime.connect(device, native, policies, out, error);
    });
  }
  py::tuple connect_address(int device, const std::string& host, std::uint16_t port,
                            const std::string& policies) const {
    return make<BoundDial, message::Dial>([&](message::Runtime& runtime, auto* out, std::string* error) {
      return runtime.connect(device, host, port, policies, out, error);
    });
  }
};

// Runs `call`, which changes a policy or its parameters, without the GIL. Returns (status, error).
template <class Call>
py::tuple change(const std::string& family, const std::string& text, bool params, const Call& call) {
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = call(family, text, params ? engine::PolicyChange::params : engine::PolicyChange::policy, &error);
  }
  return py::make_tuple(code(status), error);
}

void bind_policy_info(py::module_& module) {
  using P = engine::PolicyInfo;
  py::class_<P>(module, "PolicyInfo", "A policy in use.")
      .def_readonly("family", &P::family)
      .def_readonly("name", &P::name)
      .def_readonly("source_sha256", &P::source_sha256)
      .def_readonly("params_fields", &P::params_fields)
      .def_property_readonly("params", [](const P& self) { return py::bytes(self.params); });
}

// Returns (status, error, whether the settings are valid, runtime).
py::tuple open_runtime(const std::vector<std::pair<std::string, std::string>>& settings) {
  engine::Knobs knobs;
  std::string error;
  std::shared_ptr<message::Runtime> runtime;
  Status status = engine::load_knobs(&knobs, &error);
  for (const auto& [name, value] : settings) {
    if (status == Status::ok) status = engine::set_knob(&knobs, name, value, &error);
  }
  if (status == Status::ok) status = engine::check_knobs(knobs, &error);
  const bool knobs_fit = status == Status::ok;
  if (knobs_fit) {
    const Unlocked others_run;
    status = message::Runtime::open(knobs, &runtime, &error);
  }
  if (status != Status::ok) return py::make_tuple(code(status), readable(error), knobs_fit, nullptr);
  auto home = std::make_shared<Home>(std::move(runtime));
  return py::make_tuple(code(status), error, knobs_fit,
                        std::unique_ptr<BoundRuntime>(new BoundRuntime{std::move(home)}));
}

void bind_requests(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer",
                                              "The memory of a Python object, kept alive by the Buffer.")
      .def(py::init<const py::object&, const std::string&, bool>(), py::arg("object"), py::arg("argument"),
           py::arg("writable"))
      .def_property_readonly("nbytes", &Buffer::bytes);
  py::class_<RegisteredMemory, Registered>(module, "Memory",
                                           "Registered memory; deregistered when nothing refers to it.")
      .def_property_readonly("nbytes", &RegisteredMemory::bytes)
      .def_property_readonly("used", [](const RegisteredMemory& self) { return self.id() != 0; })
      .def(
          "holds",
          [](const RegisteredMemory& self, const Buffer& part) { return self.holds(part.data(), part.bytes()); },
          py::arg("part"))
      .def(
          "holds",
          [](const RegisteredMemory& self, const DeviceBuffer& part) { return self.holds(part.data(), part.bytes()); },
          py::arg("part"));
  py::class_<Posted, std::shared_ptr<Posted>>(module, "Request", "One posted send or receive.")
      .def_property_readonly("done", &Posted::done)
      .def_property_readonly("status", [](const Posted& self) { return code(self.status()); })
      .def_property_readonly("nbytes", &Posted::bytes)
      .def("outcome", &Posted::outcome,
           "Bytes transferred if the request succeeded; -1 until it is done; -2 minus the status code if it failed.")
      .def(
          "wait", [](Posted& self, std::int64_t timeout_ns) { return code(self.wait(timeout_ns)); },
          "Status code: ok when done, timed_out when not; a negative timeout waits forever.", py::arg("timeout_ns"));
}

void bind_connections(py::module_& module) {
  using C = BoundConnection;
  py::class_<C>(module, "Connection", "A connection. It keeps posted requests until they are done.")
      .def("post_plain", &C::post_plain,
           "The request; a status code if the post failed; None if `buffer` has no contiguous buffer.",
           py::arg("buffer"), py::arg("receive"))
      .def(
          "post_send",
          [](C& self, const std::shared_ptr<Buffer>& buffer, const Registered& memory) {
            return self.post(buffer, memory, false, {});
          },
          "(status, request).", py::arg("buffer"), py::arg("memory") = nullptr)
      .def(
          "post_receive",
          [](C& self, const std::shared_ptr<Buffer>& buffer, const Registered& memory,
             const std::vector<std::shared_ptr<Buffer>>& pieces) { return self.post(buffer, memory, true, pieces); },
          "(status, request). `pieces`: memory to which the received bytes are copied; empty: they stay in `buffer`.",
          py::arg("buffer"), py::arg("memory") = nullptr, py::arg("pieces") = py::tuple())
      .def(
          "post_send",
          [](C& self, const std::shared_ptr<DeviceBuffer>& buffer, const Registered& memory) {
            return self.post_device(buffer, memory, false);
          },
          "(status, request).", py::arg("buffer"), py::arg("memory") = nullptr)
      .def(
          "post_receive",
          [](C& self, const std::shared_ptr<DeviceBuffer>& buffer, const Registered& memory) {
            return self.post_device(buffer, memory, true);
          },
          "(status, request).", py::arg("buffer"), py::arg("memory") = nullptr)
      .def("withdraw", py::overload_cast<Posted&>(&C::withdraw),
           "Ends the use of a request's memory by engines and copies; it may end the connection.", py::arg("request"))
      .def("withdraw", py::overload_cast<DevicePosted&>(&C::withdraw),
           "Ends the use of a request's GPU memory by copies; it may end the connection.", py::arg("request"))
      .def("close", &C::close)
      .def("health", [](const C& self) { return code(self.health()); })
      .def("peer_address", [](const C& self) { return self.open()->peer_address(); })
      .def(
          "change_policy",
          [](const C& self, const std::string& family, const std::string& text, bool params,
             std::int64_t engine) -> py::tuple {
            const std::shared_ptr<message::Connection> connection = self.open();
            if (self.forked()) return py::make_tuple(code(Status::forked_child), "");
            return change(family, text, params,
                          [&](const auto& name, const auto& words, auto what, std::string* error) {
                            return connection->change_policy(name, words, what, error, engine);
                          });
          },
          "(status, error).", py::arg("family"), py::arg("text"), py::arg("params"), py::arg("engine") = -1)
      .def("policies",
           [](const C& self) {
             const std::shared_ptr<message::Connection> connection = self.open();
             if (self.forked()) return std::vector<engine::PolicyInfo>();
             const Unlocked others_run;
             return connection->policies();
           })
      .def("counters", &C::counters);
}

void bind_ways_in(py::module_& module) {
  py::class_<BoundDial>(module, "Dial", "A connection attempt; dropping it abandons the attempt.")
      .def("poll", &BoundDial::poll, "(status, connection).")
      .def("wait", &BoundDial::wait, "Waits until poll() has a result, for `timeout_ns` at most.",
           py::arg("timeout_ns"))
      .def("close", &BoundDial::close, "Gives up the attempt and ends wait(); may be called on any thread, and again.")
      .def("error", &BoundDial::error)
      .def("cause", &BoundDial::cause,
           "Status code of the error that error() describes, while poll() returns would_block; would_block: no error.");
  py::class_<BoundListener>(module, "Listener", "Accepts peers until it is dropped.")
      .def("accept", &BoundListener::accept, "(status, connection).")
      .def("wait", &BoundListener::wait,
           "Waits until a connection can be accepted or the listener is closed, for `timeout_ns` at most.",
           py::arg("timeout_ns"))
      .def("close", &BoundListener::close, "Stops accepting; may be called on any thread, and again.")
      .def("trouble", &BoundListener::trouble,
           "(status, text): why a connected peer could not be accepted in the last `within_ns`. If the status is OK, "
           "the "
           "text names a peer that was refused in that time, and why; empty if none was.",
           py::arg("within_ns"))
      .def("handle", &BoundListener::handle)
      .def("port", &BoundListener::port);
}

void bind_policies_of(py::class_<BoundRuntime>& runtime) {
  runtime
      .def(
          "change_policy",
          [](const BoundRuntime& self, const std::string& family, const std::string& text, bool params) -> py::tuple {
            const std::shared_ptr<Home> home = self.open();
            if (home->forked()) return py::make_tuple(code(Status::forked_child), "");
            return change(family, text, params,
                          [&](const auto&... given) { return home->runtime().change_policy(given...); });
          },
          "(status, error). Changes a policy, or its parameters, of every connection without policies of its own.",
          py::arg("family"), py::arg("text"), py::arg("params"))
      .def("policies", [](const BoundRuntime& self) {
        const std::shared_ptr<Home> home = self.open();
        if (home->forked()) return std::vector<engine::PolicyInfo>();
        const Unlocked others_run;
        return home->runtime().policies();
      });
}

void bind_recording(py::class_<BoundRuntime>& runtime) {
  runtime
      .def(
          "start_recording",
          [](const BoundRuntime& self, const std::string& path, std::int64_t bytes_max) {
            const std::shared_ptr<Home> home = self.open();
            std::string error, written;
            Status status = Status::forked_child;
            if (!home->forked()) {
              const Unlocked others_run;
              status = home->runtime().start_recording(path, bytes_max, &written, &error);
            }
            return py::make_tuple(code(status), error, written);
          },
          "(status, error, name of the recording file).", py::arg("path"), py::arg("bytes_max"))
      .def(
          "stop_recording",
          [](const BoundRuntime& self) {
            const std::shared_ptr<Home> home = self.open();
            std::string error;
            engine::RecordingStats stats;
            Status status = Status::forked_child;
            if (!home->forked()) {
              const Unlocked others_run;
              status = home->runtime().stop_recording(&stats, &error);
            }
            return py::make_tuple(code(status), error,
                                  py::make_tuple(stats.decisions, stats.lost, stats.bytes, stats.error));
          },
          "(status, error, (recorded decisions, lost decisions, bytes, reason if the recording ended early)).");
}

}  // namespace

void bind_runtime(py::module_& module) {
  bind_policy_info(module);
  bind_requests(module);
  bind_connections(module);
  bind_ways_in(module);
  py::class_<BoundRuntime> runtime(module, "Runtime", "The engines, listeners and connections of a process.");
  bind_policies_of(runtime);
  bind_recording(runtime);
  runtime.def("devices", [](const BoundRuntime& self) { return self.open()->runtime().devices(); })
      .def(
          "register_memory",
          [](const BoundRuntime& self, const std::shared_ptr<Buffer>& buffer) {
            datapath::Memory memory;
            memory.data = static_cast<std::uint8_t*>(buffer->data());
            memory.bytes = buffer->bytes();
            return std::make_shared<RegisteredMemory>(self.open(), buffer, memory);
          },
          py::arg("buffer"))
      .def(
          "register_memory",
          [](const BoundRuntime& self, const std::shared_ptr<DeviceBuffer>& buffer) {
            if (buffer->home() != self.open().get()) throw py::value_error("buffer: it belongs to another endpoint");
            return register_device(buffer);
          },
          py::arg("buffer"))
      .def(
          "hold_device",
          [](const BoundRuntime& self, const py::object& owner, const std::vector<DeviceRun>& runs, int device) {
            return hold_device(self.open(), owner, runs, device);
          },
          "(status, error, buffer). `runs`: (address, bytes) of each piece; `owner` is kept alive while they are in "
          "use; `device`: the GPU, used only if there are no bytes (otherwise the addresses determine the GPU).",
          py::arg("owner"), py::arg("runs"), py::arg("device"))
      .def(
          "lend_stream", [](const BoundRuntime& self, int device) { return lend_stream(self.open(), device); },
          "(status, error, lent_stream). Lends a CUDA stream of the GPU `device`, on which the caller waits for "
          "messages.",
          py::arg("device"))
      .def("listen", &BoundRuntime::listen, "(status, error, listener).", py::arg("device"), py::arg("port"),
           py::arg("policies") = "", py::arg("open") = false)
      .def("connect_handle", &BoundRuntime::connect_handle, "(status, error, dial).", py::arg("device"),
           py::arg("handle"), py::arg("policies") = "")
      .def("connect_address", &BoundRuntime::connect_address, "(status, error, dial).", py::arg("device"),
           py::arg("host"), py::arg("port"), py::arg("policies") = "")
      .def("event_descriptor", [](const BoundRuntime& self) { return self.open()->runtime().event_descriptor(); })
      .def("counters",
           [](const BoundRuntime& self) {
             const std::shared_ptr<Home> home = self.open();
             if (home->forked()) return telemetry::EndpointCounters();
             const Unlocked others_run;
             return home->runtime().counters();
           })
      .def("telemetry_page", [](const BoundRuntime& self) { return self.open()->runtime().telemetry_page(); })
      .def("summary", [](const BoundRuntime& self) { return self.open()->runtime().summary(); })
      .def("close", [](BoundRuntime& self) { self.home.reset(); });
  module.def("open_runtime", &open_runtime, "(status, error, whether the knobs are valid, runtime).",
             py::arg("settings"));
}

}  // namespace weft::bind
