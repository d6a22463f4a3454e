// Python bindings of the runtime: devices, listeners, connections, requests and their buffers. Most calls return a
// status; they raise only for unusable arguments.
#include "native/message/runtime.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "native/bind/device.h"
#include "native/bind/held.h"
#include "native/bind/unlocked.h"

namespace weft::bind {
namespace {

// The pending requests of one direction. It is a list because even an empty deque allocates, and closing must work when
// memory runs out.
using Lane = std::list<std::shared_ptr<Posted>>;

// A connection and its pending requests. Its list keeps a request until the request is done, even if Python has dropped
// it.
class BoundConnection {
 public:
  BoundConnection(std::shared_ptr<Home> home, std::shared_ptr<message::Connection> connection)
      : home_(std::move(home)), connection_(std::move(connection)), counted_(connection_) {}
  BoundConnection(const BoundConnection&) = delete;
  BoundConnection& operator=(const BoundConnection&) = delete;
  ~BoundConnection() { close(); }

  // Posts a send or receive. A received message is copied from `buffer` into `pieces` unless `pieces` is empty.
  py::tuple post(const std::shared_ptr<Buffer>& buffer, const Registered& memory, bool receive,
                 const std::vector<std::shared_ptr<Buffer>>& pieces) {
    const std::shared_ptr<message::Connection> connection = usable();
    if (connection == nullptr) return py::make_tuple(code(unusable()), nullptr);
    check_home(memory);
    using Held = std::pair<std::shared_ptr<Buffer>, std::vector<std::shared_ptr<Buffer>>>;
    message::HostBuffer place{buffer->data(), buffer->bytes(), memory == nullptr ? 0 : memory->id(), {}};
    for (const auto& piece : pieces)
      place.pieces.push_back({static_cast<std::uint8_t*>(piece->data()), piece->bytes()});
    std::shared_ptr<const void> held = buffer;
    if (!pieces.empty()) held = std::make_shared<const Held>(buffer, pieces);
    return start(connection, std::move(held), memory, std::move(place), receive);
  }

  // Like post(), for an object with a simple buffer, which it takes in the same call. Returns the request, the status
  // code if the post failed, or None if the object has no such buffer.
  py::object post_plain(const py::object& object, bool receive) {
    const std::shared_ptr<message::Connection> connection = usable();
    if (connection == nullptr) return py::int_(code(unusable()));
    std::shared_ptr<Buffer> buffer = Buffer::plain(object, receive);
    if (buffer == nullptr) return py::none();
    message::HostBuffer place{buffer->data(), buffer->bytes(), 0, {}};
    std::shared_ptr<Posted> posted;
    const Status status = start(connection, std::move(buffer), nullptr, std::move(place), receive, &posted);
    if (status != Status::ok) return py::int_(code(status));
    return py::cast(std::move(posted));
  }

  py::tuple post_device(const std::shared_ptr<DeviceBuffer>& buffer, const Registered& memory, bool receive) {
    const std::shared_ptr<message::Connection> connection = usable();
    if (connection == nullptr) return py::make_tuple(code(unusable()), nullptr);
    if (buffer->home() != home_.get()) throw py::value_error("memory: it was registered with another endpoint");
    check_home(memory);
    const auto way = receive ? message::Backlog::Way::receive : message::Backlog::Way::send;
    if (memory != nullptr && message::is_read_in_place(*connection, way, buffer->layout(), memory->id())) {
      // The NIC reads the memory in place and knows nothing of CUDA streams: the caller must have waited for the work
      // that writes the memory.
      return start(connection, buffer, memory, {buffer->data(), buffer->bytes(), memory->id(), {}}, false);
    }
    reap_device();
    // Adds the request to the list before it is posted, so that the buffer lives on even if memory runs out in between.
    const auto posted = std::make_shared<DevicePosted>(buffer);
    device_lane_.push_back(posted);
    const Status status = posted->begin(connection, receive);
    if (status == Status::ok) return py::make_tuple(code(status), posted);
    device_lane_.remove(posted);  // `posted` still keeps the request alive
    return py::make_tuple(code(status), nullptr);
  }

  void quiesce(const DeviceBuffer& buffer) {
    const std::shared_ptr<message::Connection> connection = connection_;
    if (connection == nullptr || home_->forked()) return;
    const DeviceLane lane = device_lane_;  // a copy, because other threads may change the list during the waits
    for (const std::shared_ptr<DevicePosted>& posted : lane) {
      if (posted->holds(buffer) && !posted->done()) posted->quiesce(*connection);
    }
    reap_device();
  }

  void quiesce(const Buffer& buffer) {
    const std::shared_ptr<message::Connection> connection = connection_;
    if (connection == nullptr || home_->forked() || buffer.bytes() == 0) return;
    {
      const Unlocked others_run;
      connection->quiesce(buffer.data(), buffer.bytes());
    }
    for (Lane& lane : lanes_) reap(&lane);
  }

  void close() {
    std::shared_ptr<message::Connection> connection = std::exchange(connection_, nullptr);
    if (connection == nullptr) return;
    Lane gone[2];
    DeviceLane gone_device;
    if (home_->forked()) {
      new std::shared_ptr<message::Connection>(connection);
    } else {
      const Unlocked others_run;
      connection->close();
    }
    for (int i : {0, 1}) gone[i].swap(lanes_[i]);
    gone_device.swap(device_lane_);
    const std::shared_ptr<Home> home = std::move(home_);
    if (!home->forked()) {
      const Unlocked others_run;
      connection->await_copies();
    }
    for (const Lane& lane : gone) {
      for (const std::shared_ptr<Posted>& posted : lane) posted->settled();
    }
    for (const std::shared_ptr<DevicePosted>& posted : gone_device) posted->settled();
    if (!home->forked()) keep_counters();
    counted_ = nullptr;
    if (home->forked()) return;
    const Unlocked others_run;
    connection = nullptr;  // without the GIL: dropping the last reference may wait for the engines' threads
  }

  // Counters of the open connection, or their last values if it is closed: they never decrease.
  engine::ConnectionCounters counters() const {
    std::shared_ptr<message::Connection> connection = counted_;
    if (connection == nullptr) return last_counters_;
    if (forked()) return {};  // a forked child has no engines
    const Unlocked others_run;
    engine::ConnectionCounters read = connection->counters();
    connection = nullptr;  // released without the GIL: it is the last reference if close() was called meanwhile
    return read;
  }

  // Returns a reference, so that close() in another thread cannot destroy the connection during a call.
  std::shared_ptr<message::Connection> open() const {
    if (connection_ == nullptr) throw py::value_error("the connection is closed");
    return connection_;
  }
  bool forked() const { return home_ != nullptr && home_->forked(); }
  Status health() const { return connection_ == nullptr ? Status::connection_closed : connection_->health(); }

 private:
  // Null if the connection is closed or this is a forked child; unusable() says which.
  std::shared_ptr<message::Connection> usable() const {
    return connection_ == nullptr || home_->forked() ? nullptr : connection_;
  }
  Status unusable() const { return connection_ == nullptr ? Status::connection_closed : Status::forked_child; }
  void check_home(const Registered& memory) const {
    if (memory != nullptr && memory->home() != home_.get()) {
      throw py::value_error("memory: it was registered with another endpoint");
    }
  }

  // Adds the request to the list before it is posted, so that the buffer outlives the engine's use even if memory runs
  // out in between.
  Status start(const std::shared_ptr<message::Connection>& connection, std::shared_ptr<const void> held,
               const Registered& memory, message::HostBuffer place, bool receive, std::shared_ptr<Posted>* out) {
    Lane& lane = lanes_[receive ? 1 : 0];
    reap(&lane);
    auto posted = std::make_shared<Posted>(home_, std::move(held), memory);
    lane.push_back(posted);
    const auto way = receive ? message::Backlog::Way::receive : message::Backlog::Way::send;
    const Status status = posted->begin(*connection, way, std::move(place));
    if (status == Status::ok) {
      *out = std::move(posted);
    } else {
      lane.remove(posted);
    }
    return status;
  }
  py::tuple start(const std::shared_ptr<message::Connection>& connection, std::shared_ptr<const void> held,
                  const Registered& memory, message::HostBuffer place, bool receive) {
    std::shared_ptr<Posted> posted;
    const Status status = start(connection, std::move(held), memory, std::move(place), receive, &posted);
    return py::make_tuple(code(status), std::move(posted));
  }

  void keep_counters() noexcept {
    try {
      engine::ConnectionCounters last;
      {
        const Unlocked others_run;
        last = counted_->counters();
      }
      last_counters_ = std::move(last);
    } catch (const std::bad_alloc&) {  // out of memory: counters() will return zeros
    }
  }

  // Removes finished requests from the list before it releases their buffers, because a release may run Python code
  // that changes the list.
  void reap_device() {
    DeviceLane over;
    for (auto posted = device_lane_.begin(); posted != device_lane_.end();) {
      const auto next = std::next(posted);
      if ((*posted)->done()) over.splice(over.end(), device_lane_, posted);
      posted = next;
    }
    for (const std::shared_ptr<DevicePosted>& posted : over) posted->settled();
  }

  static void reap(Lane* lane) {
    while (!lane->empty() && lane->front()->done()) {
      const std::shared_ptr<Posted> first = std::move(lane->front());
      lane->pop_front();
      // Releases the buffer. Another thread may still wait for the request and then keeps the request alive.
      static_cast<void>(first->settled());
    }
  }

  std::shared_ptr<Home> home_;
  std::shared_ptr<message::Connection> connection_;
  std::shared_ptr<message::Connection> counted_;  // the connection, until its counters are in last_counters_
  engine::ConnectionCounters last_counters_;
  Lane lanes_[2];
  DeviceLane device_lane_;
};

struct BoundListener {
  std::shared_ptr<Home> home;
  std::unique_ptr<message::Listener> listener;
  ~BoundListener() {
    if (home->forked()) static_cast<void>(listener.release());
  }
  py::tuple accept() {
    std::shared_ptr<message::Connection> made;
    const Status status = home->forked() ? Status::forked_child : listener->accept(&made);
    if (status != Status::ok) return py::make_tuple(code(status), nullptr);
    return py::make_tuple(code(status), std::make_unique<BoundConnection>(home, std::move(made)));
  }
  py::bytes handle() const {
    const control::Handle made = listener->handle();
    return {reinterpret_cast<const char*>(made.bytes), sizeof made.bytes};
  }
};

struct BoundDial {
  std::shared_ptr<Home> home;
  std::unique_ptr<message::Dial> dial;
  ~BoundDial() {
    if (home->forked()) static_cast<void>(dial.release());
  }
  py::tuple poll() {
    std::shared_ptr<message::Connection> made;
    const Status status = home->forked() ? Status::forked_child : dial->poll(&made);
    if (status != Status::ok) return py::make_tuple(code(status), nullptr);
    return py::make_tuple(code(status), std::make_unique<BoundConnection>(home, std::move(made)));
  }
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
    return py::make_tuple(code(status), error, std::unique_ptr<Bound>(new Bound{held, std::move(made)}));
  }
  py::tuple listen(int device, std::uint16_t port, const std::string& policies) const {
    return make<BoundListener, message::Listener>([&](message::Runtime& runtime, auto* out, std::string* error) {
      return runtime.listen(device, port, policies, out, error);
    });
  }
  py::tuple connect_handle(int device, const py::bytes& handle, const std::string& policies) const {
    const auto text = static_cast<std::string>(handle);
    control::Handle native;
    if (text.size() != sizeof native.bytes) throw py::value_error("handle: needs the 64 bytes of a listener's handle");
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

void bind_policies(py::module_& module) {
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
  if (status != Status::ok) return py::make_tuple(code(status), error, knobs_fit, nullptr);
  auto home = std::make_shared<Home>(std::move(runtime));
  return py::make_tuple(code(status), error, knobs_fit,
                        std::unique_ptr<BoundRuntime>(new BoundRuntime{std::move(home)}));
}

py::tuple descriptors() {
  engine::Knobs knobs;
  std::string error;
  engine::DescriptorNeed need;
  Status status = engine::load_knobs(&knobs, &error);
  if (status == Status::ok) status = message::Runtime::descriptor_need(knobs, &need, &error);
  const engine::DescriptorState state = engine::descriptor_state();
  engine::DescriptorNeed least = need;
  least.paths = std::min<std::int64_t>(need.paths, 1);
  return py::make_tuple(code(status), error, least.total(), need.total(),
                        py::make_tuple(state.soft, state.hard, state.open, engine::kProgramDescriptorsMax));
}

void bind_requests(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", "The memory of an object, kept alive by this object.")
      .def(py::init<const py::object&, const std::string&, bool>(), py::arg("object"), py::arg("argument"),
           py::arg("writable"))
      .def_property_readonly("nbytes", &Buffer::bytes);
  py::class_<RegisteredMemory, Registered>(module, "Memory", "Registered memory, deregistered with its last holder.")
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
      .def("outcome", &Posted::outcome, "Its bytes once it is done; -1: not done; below: -2 minus the status code.")
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
          "(status, request). `pieces`: where the bytes are copied to; empty: they stay in `buffer`.",
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
      .def("quiesce", py::overload_cast<const Buffer&>(&C::quiesce),
           "No engine or copy accesses the buffer afterwards.", py::arg("buffer"))
      .def("quiesce", py::overload_cast<const DeviceBuffer&>(&C::quiesce), "No copy accesses the buffer afterwards.",
           py::arg("buffer"))
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
      .def("error", [](const BoundDial& self) { return self.dial->error(); })
      .def(
          "cause", [](const BoundDial& self) { return code(self.dial->cause()); },
          "Status code of its failed attempts while poll() returns would_block; would_block: no error so far.");
  py::class_<BoundListener>(module, "Listener", "Accepts peers until it is dropped.")
      .def("accept", &BoundListener::accept, "(status, connection).")
      .def(
          "trouble",
          [](const BoundListener& self, std::int64_t within_ns) {
            std::string text;
            const Status status = self.listener->trouble(within_ns, &text);
            return py::make_tuple(code(status), text);
          },
          "(status, text): why a connected peer could not be accepted in the last `within_ns`.", py::arg("within_ns"))
      .def("handle", &BoundListener::handle)
      .def("port", [](const BoundListener& self) { return self.listener->port(); });
}

void bind_devices(py::module_& module) {
  py::class_<datapath::Device>(module, "Device", "One NIC, or several joined by the knob `interfaces`.")
      .def_readonly("name", &datapath::Device::name)
      .def_readonly("address", &datapath::Device::address)
      .def_readonly("pci_path", &datapath::Device::pci_path)
      .def_readonly("guid", &datapath::Device::guid)
      .def_readonly("speed_mbps", &datapath::Device::speed_mbps)
      .def_readonly("mtu_bytes", &datapath::Device::mtu_bytes)
      .def("__repr__", [](const datapath::Device& self) { return "<Device " + self.name + " " + self.address + ">"; });
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
          "(status, error). For every connection without policies of its own.", py::arg("family"), py::arg("text"),
          py::arg("params"))
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
          [](const BoundRuntime& self, const std::string& path) {
            const std::shared_ptr<Home> home = self.open();
            std::string error, written;
            Status status = Status::forked_child;
            if (!home->forked()) {
              const Unlocked others_run;
              status = home->runtime().start_recording(path, &written, &error);
            }
            return py::make_tuple(code(status), error, written);
          },
          "(status, error, the file).", py::arg("path"))
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
          "(status, error, (decisions, lost, bytes, reason of an early end)).");
}

}  // namespace

void bind_runtime(py::module_& module) {
  bind_policies(module);
  bind_requests(module);
  bind_connections(module);
  bind_ways_in(module);
  bind_devices(module);
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
          "use; `device`: for a message without bytes.",
          py::arg("owner"), py::arg("runs"), py::arg("device"))
      .def(
          "lend_intake", [](const BoundRuntime& self, int device) { return lend_intake(self.open(), device); },
          "(status, error, intake).", py::arg("device"))
      .def("listen", &BoundRuntime::listen, "(status, error, listener).", py::arg("device"), py::arg("port"),
           py::arg("policies") = "")
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
      .def("summary", [](const BoundRuntime& self) { return self.open()->runtime().summary(); })
      .def("close", [](BoundRuntime& self) { self.home.reset(); });
  module.def(
      "descriptors", &descriptors,
      "(status, error, needed with one path, needed with all, (soft limit, hard limit, open, descriptors left to the "
      "program at most)).");
  module.def("open_runtime", &open_runtime, "(status, error, whether the knobs are valid, runtime).",
             py::arg("settings"));
}

}  // namespace weft::bind
