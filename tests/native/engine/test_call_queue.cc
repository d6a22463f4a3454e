// Tests that calls and aborts from other threads run in order on the thread that takes them, that callers wait, and
// that exceptions reach the callers.
#include <stdexcept>
#include <string>
#include <thread>

#include "native/engine/call_queue.h"
#include "tests/native/asleep.h"
#include "tests/native/check.h"

using namespace weft::engine;
using weft::Status;

namespace {

const auto kNoAbort = [](const CallQueue::Abort&) { CHECK(false); };
const auto kNoDeferred = [](const CallQueue::Deferred&) { CHECK(false); };

}  // namespace

TEST(call_queue__takes_nothing_when_nothing_was_posted) {
  CallQueue queue;
  CHECK(queue.empty());
  CHECK(!queue.take(kNoAbort, kNoDeferred));
}

TEST(call_queue__keeps_the_order_of_calls_and_aborts) {
  CallQueue queue;
  std::string order;
  const std::function<void()> first = [&] { order += 'a'; }, last = [&] { order += 'c'; };
  Call one(first), two(last);
  CHECK(queue.post(&one));
  CHECK(queue.post({7, 42, Status::cancelled}));
  CHECK(queue.post(&two));
  CHECK(!queue.empty());
  CHECK(queue.take(
      [&](const CallQueue::Abort& abort) {
        CHECK_EQUAL(abort.flow, 7u);
        CHECK_EQUAL(abort.connection, 42u);
        CHECK_EQUAL(abort.reason, Status::cancelled);
        order += 'b';
      },
      kNoDeferred));
  CHECK_EQUAL(order, "abc");
  CHECK(queue.empty());
  one.wait();
  two.wait();
}

TEST(call_queue__what_a_call_throws_is_thrown_where_it_is_awaited) {
  CallQueue queue;
  const std::function<void()> work = [] { throw std::runtime_error("no"); };
  Call call(work);
  CHECK(queue.post(&call));
  CHECK(queue.take(kNoAbort, kNoDeferred));
  std::string text;
  try {
    call.wait();
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  CHECK_EQUAL(text, "no");
}

TEST(call_queue__a_call_may_post_another) {
  CallQueue queue;
  int runs = 0;
  const std::function<void()> inner = [&] { ++runs; };
  Call second(inner);
  const std::function<void()> outer = [&] { CHECK(queue.post(&second)); };
  Call first(outer);
  CHECK(queue.post(&first));
  CHECK(queue.take(kNoAbort, kNoDeferred));
  CHECK_EQUAL(runs, 0);
  CHECK(queue.take(kNoAbort, kNoDeferred));
  CHECK_EQUAL(runs, 1);
}

TEST(call_queue__a_thread_that_waits_sleeps) {
  CallQueue queue;
  std::atomic<std::int32_t> caller{0};
  const std::function<void()> work = [] {};
  Call call(work);
  std::thread waiting([&] {
    caller = weft::test::this_thread();
    call.wait();
  });
  while (caller == 0) std::this_thread::yield();
  const bool slept = weft::test::falls_asleep(caller);
  CHECK(queue.post(&call));
  CHECK(queue.take(kNoAbort, kNoDeferred));
  waiting.join();
  CHECK(slept);
}

TEST(call_queue__threads_wait_until_their_calls_have_run_on_the_taking_thread) {
  CallQueue queue;
  constexpr int kThreads = 4, kCalls = 200;
  std::atomic<bool> stop{false};
  int runs = 0;  // number of calls that have run; only the thread that takes them changes it
  std::thread engine([&] {
    while (!stop.load()) queue.take(kNoAbort, kNoDeferred);
  });
  std::vector<std::thread> callers;
  for (int i = 0; i < kThreads; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < kCalls; ++k) {
        bool ran = false;
        const std::function<void()> work = [&] {
          ++runs;
          ran = true;
        };
        Call call(work);
        CHECK(queue.post(&call));
        call.wait();
        CHECK(ran);
      }
    });
  }
  for (std::thread& each : callers) each.join();
  stop.store(true);
  engine.join();
  CHECK_EQUAL(runs, kThreads * kCalls);
}
