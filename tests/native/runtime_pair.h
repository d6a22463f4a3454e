// A fixture for tests of whole engines: two runtimes on loopback with a connection between them, and data to send.
// Every wait has a time limit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/engine/clock.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"

namespace weft::test {

inline constexpr std::int64_t kPatienceNs = 20'000'000'000;

struct RuntimePair {
  std::shared_ptr<message::Runtime> a, b;
  std::unique_ptr<message::Listener> listener;
  std::shared_ptr<message::Connection> here, there;

  explicit RuntimePair(engine::Knobs knobs) {
    knobs.interfaces = "lo";
    std::string error;
    CHECK_EQUAL(message::Runtime::open(knobs, &a, &error), Status::ok);
    CHECK_EQUAL(message::Runtime::open(knobs, &b, &error), Status::ok);
    CHECK_EQUAL(a->listen(0, 0, "", &listener, &error), Status::ok);
    connect();
  }
  void connect() {
    std::string error;
    std::unique_ptr<message::Dial> dial;
    here.reset();
    there.reset();
    CHECK_EQUAL(b->connect(0, listener->handle(), "", &dial, &error), Status::ok);
    for (const std::int64_t until = engine::now_ns() + kPatienceNs; here == nullptr || there == nullptr;) {
      if (here == nullptr && dial->poll(&here) != Status::would_block && here == nullptr) {
        fail(__FILE__, __LINE__, "cannot connect: " + dial->error());
      }
      if (there == nullptr) static_cast<void>(listener->accept(&there));
      CHECK(engine::now_ns() < until);
    }
  }
};

inline Status finish(message::Connection& connection, engine::Request* request) {
  CHECK_EQUAL(connection.wait(request, kPatienceNs), Status::ok);
  const Status status = request->status();
  connection.release(request);
  return status;
}

inline std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::uint8_t> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::uint8_t>((i + seed) * 2654435761u >> 11);
  return made;
}

}  // namespace weft::test
