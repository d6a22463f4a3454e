// A connection as Python holds it, with its pending requests.
#pragma once

#include <pybind11/pybind11.h>

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/bind/device.h"
#include "native/bind/held.h"
#include "native/bind/unlocked.h"
#include "native/message/runtime.h"

namespace weft::bind {

// The pending requests of one direction. It is a list because even an empty deque allocates, and closing must work when
// memory runs out.
using Lane = std::list<std::shared_ptr<Posted>>;

// A connection and its pending requests. It keeps each request alive until the request is done, even if Python has
// dropped it.
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

  // Like post(), but takes the Python object itself and gets its buffer in the same call. Returns the request, the
  // status code if the post failed, or None if the object has no contiguous (for a receive: writable) buffer.
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
    const auto direction = receive ? message::Backlog::Direction::receive : message::Backlog::Direction::send;
    if (memory != nullptr && message::is_read_in_place(*connection, direction, buffer->layout(), memory->id())) {
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

  // Makes weft stop using the memory of a request. A request that waits in the backlog is removed from it; if the
  // request was already posted to the engines, the connection ends.
  void withdraw(DevicePosted& posted) {
    const std::shared_ptr<message::Connection> connection = usable();
    if (connection == nullptr || posted.done()) return;
    posted.quiesce(*connection);
    reap_device();
  }
  void withdraw(Posted& posted) {
    const std::shared_ptr<message::Connection> connection = usable();
    if (connection == nullptr || posted.done()) return;
    posted.quiesce(*connection);
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
    if (connection == nullptr) return last_counters_ == nullptr ? engine::ConnectionCounters{} : *last_counters_;
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
    const auto direction = receive ? message::Backlog::Direction::receive : message::Backlog::Direction::send;
    const Status status = posted->begin(*connection, direction, std::move(place));
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
      std::unique_ptr<engine::ConnectionCounters> last;
      {
        const Unlocked others_run;
        last = std::make_unique<engine::ConnectionCounters>(counted_->counters());
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
  std::unique_ptr<engine::ConnectionCounters> last_counters_;  // null: none are kept
  Lane lanes_[2];
  DeviceLane device_lane_;
};

}  // namespace weft::bind
