// A fake runtime in which every step would block first, to test that the plugin does not treat that
// as an error. It replaces native/message in one test library, and connects within the process
// only.
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "native/engine/log.h"
#include "native/message/runtime.h"

namespace weft::message {
namespace {

constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'w', 'e', 'f', 't'};

// Makes each operation report "would block" `kRefusals` times before it succeeds.
class Reluctance {
 public:
  bool refuses() noexcept { return ++asked_ % (kRefusals + 1) != 0; }

 private:
  static constexpr int kRefusals = 3;
  std::atomic<int> asked_{0};
};

class FakeRequest final : public engine::Request {
 public:
  void finish(Status status, std::size_t bytes) noexcept {
    bytes_ = bytes;
    state_.store(1 + static_cast<std::int32_t>(status), std::memory_order_release);
  }
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
  std::size_t length = 0;
};

// One direction of a connection: the pump thread matches sends of one end with receives of the other.
struct Lane {
  std::deque<FakeRequest*> sends;
  std::deque<FakeRequest*> receives;
};

struct Wire {
  std::mutex mutex;
  Lane lanes[2];
  bool closed = false;

  void pump() {
    const std::lock_guard lock(mutex);
    for (Lane& lane : lanes) {
      // Completes at most one message per lane and call: requests stay pending for a while, as on a network.
      if (lane.sends.empty() || lane.receives.empty()) continue;
      FakeRequest* const send = lane.sends.front();
      FakeRequest* const receive = lane.receives.front();
      lane.sends.pop_front();
      lane.receives.pop_front();
      const bool fits = send->length <= receive->length;
      if (fits && send->length > 0) std::memcpy(receive->to, send->from, send->length);
      const Status status = fits ? Status::ok : Status::message_too_long;
      receive->finish(status, send->length);
      send->finish(status, send->length);
    }
  }
  // The caller must hold the lock.
  static void cancel(std::deque<FakeRequest*>* queue, const std::uint8_t* begin, const std::uint8_t* end,
                     Status why = Status::cancelled) {
    for (auto entry = queue->begin(); entry != queue->end();) {
      const std::uint8_t* const data = (*entry)->from != nullptr ? (*entry)->from : (*entry)->to;
      const bool inside = begin == nullptr || (data >= begin && data < end);
      if (inside) (*entry)->finish(why, 0);
      entry = inside ? queue->erase(entry) : std::next(entry);
    }
  }
};

class FakeConnection final : public Connection {
 public:
  FakeConnection(std::shared_ptr<Wire> wire, int end) : wire_(std::move(wire)), end_(end) {}
  ~FakeConnection() override { close(); }

  Status post_send(const void* data, std::size_t bytes, std::uint32_t, engine::Request** out,
                   std::uint32_t) noexcept override {
    return post(&wire_->lanes[end_].sends, {static_cast<const std::uint8_t*>(data), nullptr}, bytes, out);
  }
  Status post_receive(void* data, std::size_t bytes, std::uint32_t, engine::Request** out,
                      std::uint32_t) noexcept override {
    return post(&wire_->lanes[1 - end_].receives, {nullptr, static_cast<std::uint8_t*>(data)}, bytes, out);
  }
  Status start(Backlog::Direction, HostBuffer, std::shared_ptr<HostMessage>*) noexcept override {
    return Status::internal_error;
  }
  Status start(Backlog::Direction, const std::shared_ptr<DeviceMessage>&) noexcept override {
    return Status::internal_error;
  }
  void await_copies() noexcept override {}
  void quiesce(DeviceMessage*) noexcept override {}
  void quiesce(HostMessage*) noexcept override {}
  Status post_staged_send(core::Stage*, std::size_t, engine::Request**) noexcept override {
    return Status::internal_error;
  }
  Status post_staged_receive(core::Stage*, std::size_t, engine::Request**, engine::LoanTaker*) noexcept override {
    return Status::internal_error;
  }
  std::uint32_t flows() const noexcept override { return 1; }
  bool on_staged(engine::Request*, std::uint32_t) noexcept override { return true; }
  void release(engine::Request* request) noexcept override {
    const std::lock_guard lock(wire_->mutex);
    requests_.erase(request);
  }
  Status wait(engine::Request*, std::int64_t) noexcept override { return Status::timed_out; }
  void close() noexcept override {
    const std::lock_guard lock(wire_->mutex);
    wire_->closed = true;
    Wire::cancel(&wire_->lanes[end_].sends, nullptr, nullptr);
    Wire::cancel(&wire_->lanes[1 - end_].receives, nullptr, nullptr);
    Wire::cancel(&wire_->lanes[1 - end_].sends, nullptr, nullptr, Status::connection_closed);
    Wire::cancel(&wire_->lanes[end_].receives, nullptr, nullptr, Status::connection_closed);
  }
  void quiesce(const void* data, std::size_t bytes) noexcept override {
    const auto* const begin = static_cast<const std::uint8_t*>(data);
    const std::lock_guard lock(wire_->mutex);
    Wire::cancel(&wire_->lanes[end_].sends, begin, begin + bytes);
    Wire::cancel(&wire_->lanes[1 - end_].receives, begin, begin + bytes);
  }
  Status health() const noexcept override {
    const std::lock_guard lock(wire_->mutex);
    return wire_->closed ? Status::connection_closed : Status::ok;
  }
  std::string peer_address() const override { return "fake"; }
  Status change_policy(const std::string&, const std::string&, engine::PolicyChange, std::string*,
                       std::int64_t) noexcept override {
    return Status::internal_error;
  }
  std::vector<engine::PolicyInfo> policies() const override { return {}; }
  ConnectionCounters counters() const override { return {}; }
  bool reads_payload() const noexcept override { return false; }

 private:
  using Place = std::pair<const std::uint8_t*, std::uint8_t*>;
  Status post(std::deque<FakeRequest*>* queue, Place place, std::size_t bytes, engine::Request** out) noexcept {
    if (reluctance_.refuses()) return Status::would_block;
    auto made = std::make_unique<FakeRequest>();
    FakeRequest* const request = made.get();
    request->from = place.first;
    request->to = place.second;
    request->length = bytes;
    const std::lock_guard lock(wire_->mutex);
    if (wire_->closed) return Status::connection_closed;
    requests_.emplace(request, std::move(made));
    queue->push_back(request);
    *out = request;
    return Status::ok;
  }

  std::shared_ptr<Wire> wire_;
  int end_;
  std::map<engine::Request*, std::unique_ptr<FakeRequest>> requests_;  // requests not released yet
  Reluctance reluctance_;
};

struct Fabric {
  std::mutex mutex;
  std::uint64_t next_port = 1;
  std::map<std::uint64_t, std::deque<std::shared_ptr<Wire>>> waiting;  // listener's port -> connections to accept
  std::vector<std::weak_ptr<Wire>> wires;
};

class FakeListener final : public Listener {
 public:
  FakeListener(std::shared_ptr<Fabric> fabric, std::uint64_t port) : fabric_(std::move(fabric)), port_(port) {}
  ~FakeListener() override {
    const std::lock_guard lock(fabric_->mutex);
    // Connections that were never accepted are closed, so that the connecting ends get an error.
    for (const std::shared_ptr<Wire>& unclaimed : fabric_->waiting[port_]) FakeConnection(unclaimed, 1).close();
    fabric_->waiting.erase(port_);
  }
  control::Handle handle() const noexcept override {
    control::Handle made;
    std::memcpy(made.bytes, kMagic, sizeof kMagic);
    std::memcpy(made.bytes + sizeof kMagic, &port_, sizeof port_);
    return made;
  }
  std::uint16_t port() const noexcept override { return static_cast<std::uint16_t>(port_); }
  Status accept(std::shared_ptr<Connection>* out) noexcept override {
    if (reluctance_.refuses()) return Status::would_block;
    const std::lock_guard lock(fabric_->mutex);
    auto& queue = fabric_->waiting[port_];
    if (queue.empty()) return Status::would_block;
    *out = std::make_shared<FakeConnection>(queue.front(), 1);
    queue.pop_front();
    return Status::ok;
  }
  std::shared_ptr<Event> event() const override { return nullptr; }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::uint64_t port_;
  Reluctance reluctance_;
};

class FakeDial final : public Dial {
 public:
  FakeDial(std::shared_ptr<Fabric> fabric, std::uint64_t port) : fabric_(std::move(fabric)), port_(port) {}
  Status poll(std::shared_ptr<Connection>* out) noexcept override {
    if (reluctance_.refuses()) return Status::would_block;
    const std::lock_guard lock(fabric_->mutex);
    const auto listener = fabric_->waiting.find(port_);
    if (listener == fabric_->waiting.end()) return Status::refused;
    auto wire = std::make_shared<Wire>();
    listener->second.push_back(wire);
    fabric_->wires.push_back(wire);
    *out = std::make_shared<FakeConnection>(std::move(wire), 0);
    return Status::ok;
  }
  void help(std::int64_t) noexcept override {}
  std::shared_ptr<Event> event() const override { return nullptr; }
  void close() noexcept override {}
  std::string error() const override { return "nobody listens"; }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::uint64_t port_;
  Reluctance reluctance_;
};

class FakeRuntime final : public Runtime {
 public:
  FakeRuntime() {
    devices_.push_back({"fake0", "fake", "", 1, 0, 1500});
    devices_.push_back({"fake1", "fake", "", 2, 25000, 1500});
    pump_ = std::thread([this] { run(); });
  }
  ~FakeRuntime() override {
    stopping_ = true;
    pump_.join();
  }
  using Runtime::register_memory;
  Status register_memory(const datapath::Memory&, std::uint32_t* id) noexcept override {
    *id = 0;
    return Status::ok;
  }
  void deregister_memory(std::uint32_t) noexcept override {}
  const std::vector<datapath::Device>& devices() const noexcept override { return devices_; }
  std::string telemetry_page() const override { return ""; }
  Status listen(int device, std::uint16_t, bool, const std::string&, std::unique_ptr<Listener>* out,
                std::string* error) noexcept override {
    if (device < 0 || device >= static_cast<int>(devices_.size())) {
      *error = "no such device";
      return Status::invalid_argument;
    }
    // Lets another thread close the last comm meanwhile: the runtime must stay, because this listener uses it.
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const std::lock_guard lock(fabric_->mutex);
    const std::uint64_t port = fabric_->next_port++;
    fabric_->waiting[port];
    *out = std::make_unique<FakeListener>(fabric_, port);
    return Status::ok;
  }
  Status connect(int, const control::Handle& handle, const std::string&, std::unique_ptr<Dial>* out,
                 std::string* error) noexcept override {
    std::uint64_t port = 0;
    std::memcpy(&port, handle.bytes + sizeof kMagic, sizeof port);
    if (std::memcmp(handle.bytes, kMagic, sizeof kMagic) != 0) {
      *error = "these bytes are no handle";
      return Status::invalid_argument;
    }
    *out = std::make_unique<FakeDial>(fabric_, port);
    return Status::ok;
  }
  Status connect(int, const std::string&, std::uint16_t, const std::string&, std::unique_ptr<Dial>*,
                 std::string*) noexcept override {
    return Status::internal_error;
  }
  Status change_policy(const std::string&, const std::string&, engine::PolicyChange, std::string*) noexcept override {
    return Status::internal_error;
  }
  std::vector<engine::PolicyInfo> policies() const override { return {}; }
  Status start_recording(const std::string&, std::int64_t, std::string*, std::string*) noexcept override {
    return Status::internal_error;
  }
  Status stop_recording(engine::RecordingStats*, std::string*) noexcept override { return Status::internal_error; }
  int event_descriptor() const noexcept override { return -1; }
  void notify() noexcept override {}
  DeviceBoard* gpus() noexcept override { return nullptr; }
  void close_gpus() noexcept override {}
  telemetry::EndpointCounters counters() const override { return {}; }
  std::string summary() const override { return "fake runtime"; }

 private:
  void run() {
    while (!stopping_) {
      std::vector<std::weak_ptr<Wire>> wires;
      {
        const std::lock_guard lock(fabric_->mutex);
        wires = fabric_->wires;
      }
      for (const std::weak_ptr<Wire>& weak : wires) {
        if (const std::shared_ptr<Wire> wire = weak.lock()) wire->pump();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  engine::LogUse logs_;
  std::vector<datapath::Device> devices_;
  std::shared_ptr<Fabric> fabric_ = std::make_shared<Fabric>();
  std::atomic<bool> stopping_{false};
  std::thread pump_;
};

}  // namespace

Status Runtime::open(const engine::Knobs&, std::shared_ptr<Runtime>* out, std::string*) noexcept {
  *out = std::make_shared<FakeRuntime>();
  return Status::ok;
}

}  // namespace weft::message
