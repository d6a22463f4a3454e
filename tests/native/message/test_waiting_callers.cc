// Tests that callers that wait run the loops of engines, and that everything continues when they do not: messages,
// timers, other connections, the end of a connection. Every wait has a time limit.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "native/message/host_message.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::message;

using Pair = weft::test::RuntimePair;
using weft::test::kPatienceNs;
using weft::test::pattern;
using Message = std::shared_ptr<HostMessage>;

Message begin(Connection& connection, Backlog::Direction direction, std::vector<std::uint8_t>& bytes) {
  Message message;
  HostBuffer buffer;
  buffer.data = bytes.data();
  buffer.bytes = bytes.size();
  CHECK_EQUAL(connection.start(direction, buffer, &message), Status::ok);
  return message;
}

void await(const Message& message) {
  CHECK_EQUAL(message->wait(kPatienceNs), Status::ok);
  CHECK_EQUAL(message->status(), Status::ok);
}

// Sends messages there and back from two threads. check() fails only on the thread of the test, so the other
// thread counts its failures.
void ping_pong(Connection& here, Connection& there, int rounds, const std::vector<std::size_t>& sizes) {
  std::atomic<int> wrong{0};
  std::thread other([&] {
    for (int i = 0; i < rounds; ++i) {
      std::vector<std::uint8_t> bytes(sizes[static_cast<std::size_t>(i) % sizes.size()]);
      for (const Backlog::Direction direction : {Backlog::Direction::receive, Backlog::Direction::send}) {
        Message message;
        HostBuffer buffer;
        buffer.data = bytes.data();
        buffer.bytes = bytes.size();
        if (there.start(direction, buffer, &message) != Status::ok || message->wait(kPatienceNs) != Status::ok ||
            message->status() != Status::ok) {
          ++wrong;
          return;
        }
      }
    }
  });
  try {
    for (int i = 0; i < rounds; ++i) {
      auto sent = pattern(sizes[static_cast<std::size_t>(i) % sizes.size()], static_cast<std::uint32_t>(i));
      std::vector<std::uint8_t> back(sent.size(), 0xEE);
      const Message receive = begin(here, Backlog::Direction::receive, back);
      const Message send = begin(here, Backlog::Direction::send, sent);
      await(send);
      await(receive);
      CHECK(sent == back);
    }
  } catch (...) {
    here.close();
    other.join();
    throw;
  }
  other.join();
  CHECK_EQUAL(wrong.load(), 0);
}

}  // namespace

TEST(waiting_callers__move_messages) {
  Pair pair({});
  ping_pong(*pair.here, *pair.there, 2'000, {8, 1, 4096, 8193, 100'000});
}

TEST(waiting_callers__with_many_engines) {
  Knobs knobs;
  knobs.engines = 4;
  Pair pair(knobs);
  ping_pong(*pair.here, *pair.there, 1'000, {8, 300'000, 8, 8192, 1'000'000});
}

TEST(waiting_callers__with_faults) {
  Knobs knobs;
  knobs.fault_loss = 0.02;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.02;
  Pair pair(knobs);
  ping_pong(*pair.here, *pair.there, 300, {8, 4096, 100'000});
}

TEST(waiting_callers__that_sleep_at_once) {
  Knobs knobs;
  knobs.poll_ns = 0;
  Pair pair(knobs);
  ping_pong(*pair.here, *pair.there, 300, {8, 100'000});
}

TEST(waiting_callers__that_always_poll) {
  Knobs knobs;
  knobs.poll_share = 1.0;
  knobs.poll_ns = 1'000'000'000;
  Pair pair(knobs);
  ping_pong(*pair.here, *pair.there, 1'000, {8, 100'000});
}

// One message at a time, of sizes that callers move and of sizes that the engines' threads move.
TEST(waiting_callers__move_long_messages_one_at_a_time) {
  for (const int engines : {1, 3}) {
    Knobs knobs;
    knobs.engines = engines;
    knobs.poll_share = 1.0;
    Pair pair(knobs);
    ping_pong(*pair.here, *pair.there, 400, {65'536, 65'536, 65'536, 300'000, 65'537, 4'000'000, 4095, 4096});
  }
}

// Several threads wait for messages of the same engine, each of its own connection.
TEST(waiting_callers__share_an_engine) {
  Knobs knobs;
  knobs.engines = 1;
  Pair pair(knobs);
  CHECK(weft::test::on_connections(
      &pair, 3, [](Connection& here, Connection& there) { ping_pong(here, there, 300, {8, 4096, 100'000}); }));
}

// The callers run the loop and then go away, in the middle of all that a message still needs.
TEST(waiting_callers__that_go_away_leave_the_loop_to_its_thread) {
  Pair pair({});
  ping_pong(*pair.here, *pair.there, 200, {8});
  for (const std::size_t bytes : {8, 4096, 100'000, 1'000'000}) {
    auto sent = pattern(bytes, 7);
    std::vector<std::uint8_t> received(bytes, 0xEE);
    const Message receive = begin(*pair.there, Backlog::Direction::receive, received);
    const Message send = begin(*pair.here, Backlog::Direction::send, sent);
    for (const std::int64_t until = now_ns() + kPatienceNs; !send->done() || !receive->done();) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // waits for none of them
      CHECK(now_ns() < until);
    }
    CHECK(sent == received);
    ping_pong(*pair.here, *pair.there, 50, {8});
  }
}

// A peer that sends nothing: the wait ends in time, and the connection is as good as before.
TEST(waiting_callers__whose_message_does_not_come) {
  Pair pair({});
  ping_pong(*pair.here, *pair.there, 100, {8});
  std::vector<std::uint8_t> received(8);
  const Message receive = begin(*pair.here, Backlog::Direction::receive, received);
  const std::int64_t end_ns = now_ns() + 50'000'000;
  CHECK_EQUAL(receive->wait(50'000'000), Status::timed_out);
  CHECK(now_ns() >= end_ns);
  auto sent = pattern(8, 1);
  await(begin(*pair.there, Backlog::Direction::send, sent));
  await(receive);
  CHECK(sent == received);
}

TEST(waiting_callers__are_told_that_the_connection_was_closed) {
  Knobs knobs;
  knobs.poll_share = 1.0;
  knobs.poll_ns = 1'000'000'000;
  Pair pair(knobs);
  ping_pong(*pair.here, *pair.there, 100, {8});
  std::vector<std::uint8_t> received(8);
  const Message receive = begin(*pair.here, Backlog::Direction::receive, received);
  std::thread closer([&] {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // so that it waits; an earlier close cancels it as well
    pair.here->close();
  });
  const Status waited = receive->wait(kPatienceNs);
  closer.join();
  CHECK_EQUAL(waited, Status::ok);
  CHECK_EQUAL(receive->status(), Status::cancelled);
  pair.connect();
  ping_pong(*pair.here, *pair.there, 20, {8, 100'000});
}
