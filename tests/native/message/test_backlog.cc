// Tests messages that wait for room in the engines: order, bound, withdrawal, and the end of their connection, from
// several threads.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "native/message/host_message.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;

using Pair = weft::test::RuntimePair;
using weft::test::kPatienceNs;
using Message = std::shared_ptr<HostMessage>;
constexpr auto kSend = Backlog::Direction::send, kReceive = Backlog::Direction::receive;

constexpr std::size_t kRings = 128;  // requests per direction that the engines take

Message start(Connection& connection, Backlog::Direction direction, void* data, std::size_t bytes) {
  Message made;
  CHECK_EQUAL(connection.start(direction, {data, bytes, 0, {}}, &made), Status::ok);
  return made;
}

Status end_of(const Message& message) {
  CHECK_EQUAL(message->wait(kPatienceNs), Status::ok);
  return message->status();
}

}  // namespace

TEST(backlog__keeps_the_order_of_posts) {
  constexpr std::size_t kPosts = 3000;
  Pair pair({});
  std::vector<std::uint64_t> sent(kPosts), received(kPosts);
  std::vector<Message> sends, receives;
  for (std::size_t i = 0; i < kPosts; ++i) {
    sent[i] = i * 7 + 1;
    sends.push_back(start(*pair.here, kSend, &sent[i], sizeof sent[i]));
    receives.push_back(start(*pair.there, kReceive, &received[i], sizeof received[i]));
  }
  for (std::size_t i = 0; i < kPosts; ++i) {
    CHECK_EQUAL(end_of(sends[i]), Status::ok);
    CHECK_EQUAL(end_of(receives[i]), Status::ok);
    CHECK_EQUAL(receives[i]->bytes(), sizeof received[i]);
  }
  CHECK(sent == received);
}

TEST(backlog__serves_connections_and_threads_beside_each_other) {
  constexpr std::size_t kConnections = 4, kPosts = 1000;
  Pair pair({});
  std::vector<std::shared_ptr<Connection>> here, there;
  for (std::size_t i = 0; i < kConnections; ++i) {
    here.push_back(pair.here);
    there.push_back(pair.there);
    pair.connect();
  }
  std::vector<std::thread> threads;
  std::atomic<std::size_t> right{0};
  for (std::size_t i = 0; i < kConnections; ++i) {
    threads.emplace_back([&, i] {
      std::vector<std::uint64_t> values(kPosts);
      std::vector<Message> messages;
      for (std::size_t k = 0; k < kPosts; ++k) {
        values[k] = i * kPosts + k;
        messages.push_back(start(*here[i], kSend, &values[k], sizeof values[k]));
      }
      for (const Message& message : messages) CHECK_EQUAL(end_of(message), Status::ok);
    });
    threads.emplace_back([&, i] {
      std::vector<std::uint64_t> values(kPosts);
      std::vector<Message> messages;
      for (auto& value : values) messages.push_back(start(*there[i], kReceive, &value, sizeof value));
      for (std::size_t k = 0; k < kPosts; ++k) {
        CHECK_EQUAL(end_of(messages[k]), Status::ok);
        if (values[k] == i * kPosts + k) right.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(right.load(), kConnections * kPosts);
}

TEST(backlog__is_bounded) {
  Knobs knobs;
  knobs.posts_max = 3;
  Pair pair(knobs);
  std::vector<std::uint64_t> values(kRings + 4);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kRings + 3; ++i) {
    messages.push_back(start(*pair.here, kReceive, &values[i], sizeof values[i]));
  }
  Message refused;
  CHECK_EQUAL(pair.here->start(kReceive, {&values.back(), sizeof(std::uint64_t), 0, {}}, &refused),
              Status::would_block);
  CHECK(refused == nullptr);
  pair.here->close();
  for (const Message& message : messages) CHECK_EQUAL(end_of(message), Status::cancelled);
}

TEST(backlog__quiesce_takes_back_what_waits_and_the_connection_lives) {
  Pair pair({});
  std::vector<std::uint64_t> values(kRings + 2), sent(kRings + 1, 9);
  std::vector<Message> messages;
  for (auto& value : values) messages.push_back(start(*pair.there, kReceive, &value, sizeof value));
  pair.there->quiesce(&values[kRings], sizeof(std::uint64_t));
  CHECK_EQUAL(end_of(messages[kRings]), Status::cancelled);
  for (auto& value : sent) CHECK_EQUAL(end_of(start(*pair.here, kSend, &value, sizeof value)), Status::ok);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != kRings) CHECK_EQUAL(end_of(messages[i]), Status::ok);
    CHECK_EQUAL(values[i], i == kRings ? 0u : 9u);
  }
}

TEST(backlog__ends_while_it_is_posted) {
  for (int round = 0; round < 20; ++round) {
    Pair pair({});
    std::vector<std::uint64_t> values(1000), received(1000);
    std::vector<Message> messages;
    for (std::size_t i = 0; i < 500; ++i) start(*pair.there, kReceive, &received[i], sizeof received[i]);
    for (auto& value : values) messages.push_back(start(*pair.here, kSend, &value, sizeof value));
    (round % 2 == 0 ? pair.here : pair.there)->close();
    for (const Message& message : messages) {
      const Status status = end_of(message);
      CHECK(status == Status::ok || status == Status::cancelled || status == Status::connection_closed);
    }
    pair.there->close();  // ends receives before their buffers are destroyed
  }
}

TEST(backlog__copies_into_pieces) {
  Pair pair({});
  const auto sent = weft::test::pattern(100'000, 1);
  std::vector<std::uint8_t> whole(120'000), first(10), second(90'000), third(20'000, 0xEE);
  HostBuffer buffer{whole.data(), whole.size(), 0, {}};
  buffer.pieces = {{first.data(), 10}, {nullptr, 0}, {second.data(), 90'000}, {third.data(), 20'000}};
  Message received;
  CHECK_EQUAL(pair.there->start(kReceive, buffer, &received), Status::ok);
  const Message message = start(*pair.here, kSend, const_cast<std::uint8_t*>(sent.data()), sent.size());
  CHECK_EQUAL(end_of(message), Status::ok);
  CHECK_EQUAL(end_of(received), Status::ok);
  CHECK_EQUAL(received->bytes(), sent.size());
  CHECK(std::memcmp(first.data(), sent.data(), 10) == 0);
  CHECK(std::memcmp(second.data(), sent.data() + 10, 90'000) == 0);
  CHECK(std::memcmp(third.data(), sent.data() + 90'010, 9'990) == 0);
  for (std::size_t i = 9'990; i < third.size(); ++i) CHECK_EQUAL(third[i], 0xEE);
}
