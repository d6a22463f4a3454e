// Python bindings of GPU buffers and their requests, and the parser of DLPack capsules. Reading does not consume a
// capsule: its producer frees it.
#include "native/bind/device.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <map>
#include <optional>

#include "native/bind/unlocked.h"
#include "native/gpu/kernel_image.h"

namespace weft::bind {
namespace {

constexpr unsigned kLookUs = 20;  // microseconds between two queries whether a stream has finished

// DlTensor, DlManaged and DlManagedVersioned have the memory layout that the DLPack specification (0.8 and 1.0)
// defines.
struct DlTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t dimensions;
  std::uint8_t type_code, type_bits;
  std::uint16_t type_lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  // strides in elements; null: the array is in C order
  std::uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManaged) == 64 && sizeof(DlManagedVersioned) == 80);
constexpr std::uint64_t kReadOnly = 1;
constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kDimensionsMax = 64;

py::tuple read_dlpack(const py::capsule& capsule) {
  const DlTensor* tensor = nullptr;
  bool read_only = false;
  const std::string name = capsule.name() == nullptr ? "" : capsule.name();
  if (name == "dltensor_versioned") {
    const auto* const managed = capsule.get_pointer<DlManagedVersioned>();
    if (managed->major != kMajor)
      throw py::value_error("a capsule of DLPack " + std::to_string(managed->major) + "; weft reads version 1");
    tensor = &managed->tensor;
    read_only = (managed->flags & kReadOnly) != 0;
  } else if (name == "dltensor") {
    tensor = &capsule.get_pointer<DlManaged>()->tensor;
  } else {
    throw py::value_error("a capsule named '" + name + "'; DLPack names it dltensor or dltensor_versioned");
  }
  const std::int32_t count = tensor->dimensions;
  if (count < 0 || count > kDimensionsMax || (count > 0 && tensor->shape == nullptr)) {
    throw py::value_error("a DLPack capsule of " + std::to_string(count) +
                          " dimensions (0 to 64 are valid), or without a shape");
  }
  using Numbers = std::vector<std::int64_t>;
  std::optional<Numbers> strides;
  if (count > 0 && tensor->strides != nullptr) strides = Numbers(tensor->strides, tensor->strides + count);
  const auto address = reinterpret_cast<std::uintptr_t>(tensor->data) + tensor->byte_offset;
  const std::int64_t bits = std::int64_t{tensor->type_bits} * tensor->type_lanes;
  const Numbers shape = count > 0 ? Numbers(tensor->shape, tensor->shape + count) : Numbers();
  return py::make_tuple(tensor->device_type, int{tensor->type_code}, address, bits, shape, strides, read_only);
}

}  // namespace

void DeviceBuffer::forget_stream() {
  const message::After after = std::exchange(after_, {});
  if (home_->forked() || (after.event == nullptr && after.lent_stream == nullptr)) return;
  const Unlocked others_run;
  worker_->drop(after);
}

py::tuple DeviceBuffer::come_after(std::uint64_t stream) {
  forget_stream();
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = worker_->mark(reinterpret_cast<gpu::Stream>(stream), &after_.event, &error);
  }
  return py::make_tuple(code(status), error);
}

py::tuple DeviceBuffer::come_after_lent(LentStream& lent_stream) {
  if (lent_stream.worker() != worker_) {
    return py::make_tuple(code(Status::invalid_argument),
                          "the array is on another GPU than its __dlpack_device__() states");
  }
  py::tuple made = come_after(lent_stream.handle());
  if (after_.event != nullptr) after_.lent_stream = lent_stream.give_up();
  return made;
}

Status DeviceBuffer::post(const std::shared_ptr<message::Connection>& connection, bool receive,
                          std::shared_ptr<message::DeviceMessage>* out) {
  const auto copy_direction = receive ? gpu::Direction::to_device : gpu::Direction::to_host;
  const auto direction = receive ? message::Backlog::Direction::receive : message::Backlog::Direction::send;
  auto message =
      std::make_shared<message::DeviceMessage>(worker_, connection, copy_direction, layout_, std::exchange(after_, {}));
  const Unlocked others_run;
  const Status status = connection->start(direction, message);
  if (status == Status::ok) {
    *out = std::move(message);
  } else {
    message->cancel(status);
  }
  return status;
}

py::tuple lend_stream(const std::shared_ptr<Home>& home, int device) {
  if (home->forked()) return py::make_tuple(code(Status::forked_child), "", nullptr);
  message::DeviceWorker* worker = nullptr;
  gpu::Stream stream = nullptr;
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = home->devices().worker_at(device, &worker, &error);
    if (status == Status::ok) stream = worker->lend_stream(&error);
  }
  if (status == Status::ok && stream == nullptr) status = Status::device_error;
  if (status != Status::ok) return py::make_tuple(code(status), error, nullptr);
  return py::make_tuple(code(status), error, std::make_unique<LentStream>(home, worker, stream));
}

py::tuple DeviceBuffer::await_stream() {
  std::string error;
  if (after_.event == nullptr || home_->forked()) return py::make_tuple(code(Status::ok), error);
  bool interrupted = false;
  Status status = Status::would_block;
  static_cast<void>(wait_in_slices(
      -1, [&] { return status != Status::would_block; },
      [&](std::int64_t) {
        status = worker_->passed(after_.event, &error);
        if (status == Status::would_block) ::usleep(kLookUs);
        return Status::timed_out;
      },
      &interrupted));
  if (interrupted) throw py::error_already_set();
  forget_stream();
  return py::make_tuple(code(status), error);
}

Registered register_device(const std::shared_ptr<DeviceBuffer>& buffer) {
  const message::DeviceExport exported(&buffer->worker(), buffer->layout());
  return std::make_shared<RegisteredMemory>(buffer->shared_home(), buffer, exported.memory());
}

Status DevicePosted::wait(std::int64_t timeout_ns) {
  if (done()) return settled(), Status::ok;
  if (buffer_->home()->forked()) return Status::forked_child;
  bool interrupted = false;
  const Status result = wait_in_slices(
      timeout_ns, [this] { return done(); }, [this](std::int64_t slice_ns) { return request_->wait(slice_ns); },
      &interrupted);
  settled();
  if (interrupted) throw py::error_already_set();
  return result;
}

py::tuple DevicePosted::wait_on(std::uint64_t stream) {
  // Holds a reference, because another thread may see that the request is done and release the buffer.
  const std::shared_ptr<DeviceBuffer> buffer = buffer_;
  if (buffer == nullptr || done()) return py::make_tuple(code(Status::ok), "");
  if (buffer->home()->forked()) return py::make_tuple(code(Status::forked_child), "");
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = buffer->worker().wait_on(request_, reinterpret_cast<gpu::Stream>(stream), &error);
  }
  return py::make_tuple(code(status), error);
}

py::tuple hold_device(const std::shared_ptr<Home>& home, const py::object& owner, const std::vector<DeviceRun>& runs,
                      int device) {
  if (home->forked()) return py::make_tuple(code(Status::forked_child), "", nullptr);
  auto layout = std::make_shared<gpu::Layout>();
  for (const auto& [address, bytes] : runs) layout->add(address, bytes);
  message::DeviceWorker* worker = nullptr;
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = layout->bytes() == 0 ? home->devices().worker_at(device, &worker, &error)
                                  : home->devices().worker_of(*layout, &worker, &error);
  }
  if (status != Status::ok) return py::make_tuple(code(status), error, nullptr);
  return py::make_tuple(code(status), error, std::make_shared<DeviceBuffer>(home, owner, std::move(layout), worker));
}

py::tuple reduce(const std::string& type, const std::string& operation, const DeviceBuffer& a, const DeviceBuffer& b,
                 const DeviceBuffer& out, const DeviceBuffer* also, std::uint64_t stream) {
#define WEFT_ELEMENT(name, bytes) {#name, {gpu::ElementType::name, bytes}},
  static const std::map<std::string, std::pair<gpu::ElementType, std::uint64_t>> types{WEFT_REDUCE_TYPES(WEFT_ELEMENT)};
#undef WEFT_ELEMENT
#define WEFT_OPERATION(name, ...) {#name, gpu::Operation::name},
  static const std::map<std::string, gpu::Operation> operations{WEFT_REDUCE_OPERATIONS(WEFT_OPERATION)};
#undef WEFT_OPERATION
  const auto element = types.find(type);
  const auto what = operations.find(operation);
  if (element == types.end() || what == operations.end()) throw py::value_error("reduce: unknown type or operation");
  gpu::Reduction reduction;
  const std::uint64_t bytes = out.bytes();
  const auto place = [&](const DeviceBuffer& buffer) {
    const bool fits = buffer.bytes() == bytes && &buffer.worker() == &out.worker() &&
                      (bytes == 0 || buffer.data() != nullptr) && bytes % element->second.second == 0;
    if (!fits) throw py::value_error("reduce: the arrays must be on one device and have equal sizes in whole elements");
    return reinterpret_cast<std::uintptr_t>(buffer.data());
  };
  reduction.a = place(a);
  reduction.b = place(b);
  reduction.out = place(out);
  reduction.also = also == nullptr ? 0 : place(*also);
  reduction.elements = bytes / element->second.second;
  if (out.home()->forked()) return py::make_tuple(code(Status::forked_child), "");
  std::vector<gpu::Event> events;
  for (const DeviceBuffer* buffer : {&a, &b, &out, also}) {
    if (buffer != nullptr && buffer->event() != nullptr) events.push_back(buffer->event());
  }
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = out.worker().reduce(element->second.first, what->second, reduction, reinterpret_cast<gpu::Stream>(stream),
                                 events, &error);
  }
  return py::make_tuple(code(status), error);
}

void bind_device(py::module_& module) {
  using B = DeviceBuffer;
  py::class_<B, std::shared_ptr<B>>(module, "DeviceBuffer", "Memory of a GPU, kept alive by this object.")
      .def_property_readonly("nbytes", &B::bytes)
      .def("lies_with", &B::lies_with, "Whether both buffers are on the same device.", py::arg("other"))
      .def("come_after", &B::come_after,
           "(status, error). Messages of the buffer start after the work now queued on the stream.", py::arg("stream"))
      .def("come_after_lent", &B::come_after_lent,
           "(status, error). Messages of the buffer start after the work queued on the lent stream.",
           py::arg("lent_stream"))
      .def("await_stream", &B::await_stream,
           "(status, error). Sleeps until the stream work recorded by come_after() is done.");
  py::class_<LentStream>(module, "LentStream",
                         "A CUDA stream of weft; an array's producer makes it wait for the work that writes the array.")
      .def_property_readonly("handle", &LentStream::handle);
  using P = DevicePosted;
  py::class_<P, std::shared_ptr<P>>(module, "DeviceRequest", "One posted send or receive in the memory of a GPU.")
      .def_property_readonly("done", &P::done)
      .def_property_readonly("status", [](const P& self) { return code(self.status()); })
      .def_property_readonly("nbytes", &P::bytes)
      .def_property_readonly("error", &P::error)
      .def(
          "outcome",
          [](P& self) {
            if (!self.settled()) return std::int64_t{-1};
            if (self.status() != Status::ok) return std::int64_t{-2} - code(self.status());
            return static_cast<std::int64_t>(self.bytes());
          },
          "Bytes transferred if the request succeeded; -1 until it is done; -2 minus the status code if it failed.")
      .def(
          "wait", [](P& self, std::int64_t timeout_ns) { return code(self.wait(timeout_ns)); },
          "Status code: ok when done, timed_out when not; a negative timeout waits forever.", py::arg("timeout_ns"))
      .def("wait_on", &P::wait_on,
           "(status, error). Work queued on the stream from now on runs after the message is done.", py::arg("stream"));
  module.def("reduce", &reduce,
             "(status, error). Queues out = a op b on the stream; the caller keeps the buffers until it is done.",
             py::arg("type"), py::arg("operation"), py::arg("a"), py::arg("b"), py::arg("out"), py::arg("also"),
             py::arg("stream"));
  module.def("why_no_kernels", [] {
    const char* const why = gpu::why_no_kernels();
    return std::string(why == nullptr ? "" : why);
  });
  module.def("read_dlpack", &read_dlpack,
             "(device type, type code, address, bits of an element, shape, strides in elements or None, read-only).",
             py::arg("capsule"));
}

}  // namespace weft::bind
