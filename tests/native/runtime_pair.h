// A fixture for tests of whole engines: two runtimes on loopback with a connection between them, and data to send.
// Every wait has a time limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "native/engine/clock.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"

namespace weft::test {

inline constexpr std::int64_t kPatienceNs = 60'000'000'000;

struct RuntimePair {
  std::shared_ptr<message::Runtime> a, b;
  std::unique_ptr<message::Listener> listener;
  std::shared_ptr<message::Connection> here, there;

  // `open`: the listener also accepts peers without its handle. `local`: most tests are about the network.
  explicit RuntimePair(engine::Knobs knobs, bool open = false, engine::LocalMode local = engine::LocalMode::off) {
    knobs.interfaces = "lo";
    knobs.local = local;
    if (knobs.engines == 0) knobs.engines = 1;  // as many on every machine: each takes rings of the pinned memory
    std::string error;
    CHECK_EQUAL(message::Runtime::open(knobs, &a, &error), Status::ok);
    CHECK_EQUAL(message::Runtime::open(knobs, &b, &error), Status::ok);
    CHECK_EQUAL(a->listen(0, 0, open, "", &listener, &error), Status::ok);
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

// Opens connections until the pair has `count`, and runs `work(here, there)` for each in a thread of its own. True:
// none failed a check.
template <typename Work>
bool on_connections(RuntimePair* pair, int count, const Work& work) {
  std::vector<std::pair<std::shared_ptr<message::Connection>, std::shared_ptr<message::Connection>>> ends;
  for (int i = 0; i < count; ++i) {
    ends.emplace_back(pair->here, pair->there);
    if (i + 1 < count) pair->connect();
  }
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (auto& [here, there] : ends) {
    threads.emplace_back([&, here = here, there = there] {
      try {
        work(*here, *there);
        ++done;
      } catch (const Failure&) {  // it has printed what failed
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return done == count;
}

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
