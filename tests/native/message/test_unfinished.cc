// Tests waiting for messages whose bytes are being copied: until they are done or a time limit, and only for chosen
// messages.
#include <atomic>
#include <memory>
#include <thread>

#include "native/message/outcome.h"
#include "native/message/unfinished.h"
#include "tests/native/check.h"

namespace {

using namespace weft;

struct Message : message::Outcome {
  using Outcome::set;
};

constexpr std::int64_t kSecondNs = 1'000'000'000;
bool any(const Message&) { return true; }

}  // namespace

TEST(unfinished__await_sleeps_until_every_message_is_done) {
  message::Unfinished<Message> unfinished;
  const auto first = std::make_shared<Message>(), second = std::make_shared<Message>();
  unfinished.add(first);
  unfinished.add(second);
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    unfinished.await(engine::now_ns() + 60 * kSecondNs, any);
    ended = true;
  });
  first->set(Status::ok, 1);
  CHECK(!ended);
  second->set(Status::cancelled, 0);
  waiter.join();
  CHECK(ended);
}

TEST(unfinished__await_ends_at_its_limit) {
  message::Unfinished<Message> unfinished;
  const auto message = std::make_shared<Message>();
  unfinished.add(message);
  const std::int64_t until_ns = engine::now_ns() + kSecondNs / 100;
  unfinished.await(until_ns, any);
  CHECK(engine::now_ns() >= until_ns);
  CHECK(!message->done());
}

TEST(unfinished__await_waits_for_chosen_messages_only) {
  message::Unfinished<Message> unfinished;
  const auto chosen = std::make_shared<Message>(), other = std::make_shared<Message>();
  unfinished.add(chosen);
  unfinished.add(other);
  chosen->set(Status::ok, 0);
  unfinished.await(INT64_MAX, [&](const Message& each) { return &each == chosen.get(); });
  CHECK(!other->done());
}

TEST(unfinished__messages_that_are_gone_are_not_waited_for) {
  message::Unfinished<Message> unfinished;
  unfinished.add(std::make_shared<Message>());
  unfinished.await(INT64_MAX, any);
}
