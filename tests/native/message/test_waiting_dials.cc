// Tests that callers that wait for a connection, and run the control plane's loop meanwhile, leave everything else
// going: other dials, accepting, deadlines, the end of an endpoint. Every wait has a time limit.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::message;

using Pair = weft::test::RuntimePair;
using weft::test::kPatienceNs;

constexpr std::int64_t kSliceNs = 50'000'000;

// Dials and waits as Python's connect() does. Null: it failed or took too long.
std::shared_ptr<Connection> dialled(Runtime& from, const control::Handle& to) {
  std::unique_ptr<Dial> dial;
  std::string error;
  if (from.connect(0, to, "", &dial, &error) != Status::ok) return nullptr;
  std::shared_ptr<Connection> made;
  const std::int64_t until_ns = engine::now_ns() + kPatienceNs;
  dial->help(kSliceNs);
  const std::shared_ptr<Event> event = dial->event();
  while (dial->poll(&made) == Status::would_block && engine::now_ns() < until_ns) event->wait(kSliceNs);
  return made;
}

std::shared_ptr<Connection> accepted(Listener& listener) {
  std::shared_ptr<Connection> made;
  const std::int64_t until_ns = engine::now_ns() + kPatienceNs;
  const std::shared_ptr<Event> event = listener.event();
  while (listener.accept(&made) == Status::would_block && engine::now_ns() < until_ns) event->wait(kSliceNs);
  return made;
}

}  // namespace

TEST(waiting_dials__one_after_the_other) {
  Pair pair({});
  std::atomic<int> missing{0};
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) missing += accepted(*pair.listener) == nullptr;
  });
  for (int i = 0; i < 200; ++i) missing += dialled(*pair.b, pair.listener->handle()) == nullptr;
  other.join();
  CHECK_EQUAL(missing.load(), 0);
}

// Both processes dial each other from several threads, so that each thread's loop is also needed by others.
TEST(waiting_dials__from_many_threads_and_both_ends) {
  constexpr int kThreads = 4, kEach = 40;
  Pair pair({});
  std::unique_ptr<Listener> second;
  std::string error;
  CHECK_EQUAL(pair.b->listen(0, 0, false, "", &second, &error), Status::ok);
  std::atomic<int> missing{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int each = 0; each < kEach; ++each) missing += dialled(*pair.b, pair.listener->handle()) == nullptr;
    });
    threads.emplace_back([&] {
      for (int each = 0; each < kEach; ++each) missing += dialled(*pair.a, second->handle()) == nullptr;
    });
    threads.emplace_back([&] {
      for (int each = 0; each < kEach; ++each) missing += accepted(*pair.listener) == nullptr;
    });
    threads.emplace_back([&] {
      for (int each = 0; each < kEach; ++each) missing += accepted(*second) == nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(missing.load(), 0);
}

// A dial for which nobody waits is not forgotten beside others for which callers wait.
TEST(waiting_dials__beside_one_that_is_polled) {
  Pair pair({});
  for (int i = 0; i < 30; ++i) {
    std::unique_ptr<Dial> polled;
    std::string error;
    CHECK_EQUAL(pair.b->connect(0, pair.listener->handle(), "", &polled, &error), Status::ok);
    CHECK(dialled(*pair.b, pair.listener->handle()) != nullptr);
    std::shared_ptr<Connection> made;
    const std::int64_t until_ns = engine::now_ns() + kPatienceNs;
    while (polled->poll(&made) == Status::would_block && engine::now_ns() < until_ns) std::this_thread::yield();
    CHECK(made != nullptr);
    CHECK(accepted(*pair.listener) != nullptr);
    CHECK(accepted(*pair.listener) != nullptr);
  }
}

TEST(waiting_dials__closing_a_listener_ends_the_wait) {
  Pair pair({});
  const std::shared_ptr<Event> event = pair.listener->event();
  std::thread waiting([&] { event->wait(kPatienceNs); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that it waits; an earlier close ends it as well
  pair.listener.reset();
  waiting.join();
  event->wait(kPatienceNs);  // returns at once
}

TEST(waiting_dials__closing_a_dial_ends_its_wait) {
  Pair pair({});
  const control::Handle handle = pair.listener->handle();
  std::unique_ptr<Dial> dial;
  std::string error;
  CHECK_EQUAL(pair.b->connect(0, handle, "", &dial, &error), Status::ok);
  const std::shared_ptr<Event> event = dial->event();
  std::thread waiting([&] {
    dial->help(kPatienceNs);
    event->wait(kPatienceNs);
  });
  dial->close();
  waiting.join();
  std::shared_ptr<Connection> made;
  CHECK(dial->poll(&made) != Status::ok);
  dial.reset();
  event->wait(kPatienceNs);  // returns at once
  CHECK(dialled(*pair.b, handle) != nullptr);
}

// An endpoint with a dial that no one answers: its deadline is kept although a caller has run the loop.
TEST(waiting_dials__that_nobody_answers_time_out) {
  engine::Knobs knobs;
  knobs.handshake_timeout_ns = 300'000'000;
  Pair pair(knobs);
  control::Handle handle = pair.listener->handle();
  pair.listener.reset();
  std::unique_ptr<Dial> dial;
  std::string error;
  CHECK_EQUAL(pair.b->connect(0, handle, "", &dial, &error), Status::ok);
  std::shared_ptr<Connection> made;
  Status status = Status::would_block;
  const std::int64_t until_ns = engine::now_ns() + kPatienceNs;
  dial->help(kSliceNs);
  while ((status = dial->poll(&made)) == Status::would_block && engine::now_ns() < until_ns) {
    dial->event()->wait(kSliceNs);
  }
  CHECK(status != Status::would_block && status != Status::ok);
}
