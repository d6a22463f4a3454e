// Tests that two runtimes on loopback connect, transfer data, fail and close as runtime.h specifies. Every wait has a
// time limit.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "native/engine/clock.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/rig/rig_stage.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;

using Pair = weft::test::RuntimePair;
using weft::test::finish;
using weft::test::kPatienceNs;
using weft::test::pattern;

void exchange(Connection& from, Connection& to, std::size_t bytes, std::size_t slack) {
  const auto sent = pattern(bytes, static_cast<std::uint32_t>(bytes));
  std::vector<std::uint8_t> received(bytes + slack + 8, 0xEE);
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(to.post_receive(received.data(), bytes + slack, 0, &receive), Status::ok);
  CHECK_EQUAL(from.post_send(sent.data(), bytes, 0, &send), Status::ok);
  CHECK_EQUAL(to.wait(receive, kPatienceNs), Status::ok);
  CHECK_EQUAL(receive->status(), Status::ok);
  CHECK_EQUAL(receive->bytes(), bytes);
  CHECK(bytes == 0 || std::memcmp(sent.data(), received.data(), bytes) == 0);
  for (std::size_t i = bytes; i < received.size(); ++i) CHECK_EQUAL(received[i], 0xEE);
  to.release(receive);
  CHECK_EQUAL(finish(from, send), Status::ok);
}

void exchange_sizes(const Knobs& knobs) {
  Pair pair(knobs);
  for (const std::size_t bytes : {0, 1, 8, 8192, 8193, 100'000, 131'072, 300'000, 1'048'577}) {
    exchange(*pair.here, *pair.there, bytes, 0);
    exchange(*pair.there, *pair.here, bytes, 1000);
  }
}

}  // namespace

TEST(runtime__moves_messages) { exchange_sizes({}); }

TEST(runtime__stripes_over_engines) {
  Knobs knobs;
  knobs.engines = 2;
  knobs.stripes = 3;
  exchange_sizes(knobs);
}

TEST(runtime__ipv6) {
  Knobs knobs;
  knobs.family = AddressFamily::ipv6;
  exchange_sizes(knobs);
}

TEST(runtime__survives_faults) {
  Knobs knobs;
  knobs.fault_loss = 0.02;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.02;
  knobs.fault_corrupt = 0.02;
  exchange_sizes(knobs);
}

TEST(runtime__credit_policy) {
  Knobs knobs;
  knobs.credit_policy = "grant";
  exchange_sizes(knobs);
}

namespace {

constexpr std::uint64_t kRing = 1 << 17, kPiece = 1 << 14;

// Plays the copiers of both ends step by step, while engines send and place data.
void exchange_staged(Connection& from, Connection& to, std::size_t bytes, bool staged_send, bool staged_receive) {
  const auto sent = pattern(bytes, static_cast<std::uint32_t>(bytes));
  std::vector<std::uint8_t> received(bytes + 1000, 0xEE);
  sim::Staging out(from.flows(), kRing, kPiece, 0), in(to.flows(), kRing, kPiece, kRing);
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(staged_receive ? to.post_staged_receive(in.stage(0), received.size(), &receive)
                             : to.post_receive(received.data(), received.size(), 0, &receive),
              Status::ok);
  CHECK_EQUAL(
      staged_send ? from.post_staged_send(out.stage(0), bytes, &send) : from.post_send(sent.data(), bytes, 0, &send),
      Status::ok);
  for (const std::int64_t until = now_ns() + kPatienceNs; !send->done() || !receive->done();) {
    for (std::uint32_t i = 0; staged_send && i < from.flows(); ++i) {
      if (!out.fill(i, sent.data())) continue;
      while (!from.on_staged(send, i)) std::this_thread::yield();
    }
    for (std::uint32_t i = 0; staged_receive && i < to.flows(); ++i) static_cast<void>(in.empty(i, received.data()));
    CHECK(now_ns() < until);
  }
  for (std::uint32_t i = 0; staged_receive && i < to.flows(); ++i) static_cast<void>(in.empty(i, received.data()));
  CHECK_EQUAL(receive->bytes(), bytes);
  CHECK(bytes == 0 || std::memcmp(sent.data(), received.data(), bytes) == 0);
  for (std::size_t i = bytes; i < received.size(); ++i) CHECK_EQUAL(received[i], 0xEE);
  CHECK_EQUAL(finish(to, receive), Status::ok);
  CHECK_EQUAL(finish(from, send), Status::ok);
}

void exchange_staged_sizes(const Knobs& knobs) {
  Pair pair(knobs);
  for (const std::size_t bytes : {0, 1, 8192, 8193, 131'072, 131'073, 1'048'577, 5'000'000}) {
    exchange_staged(*pair.here, *pair.there, bytes, true, true);
    exchange_staged(*pair.there, *pair.here, bytes, true, false);
    exchange_staged(*pair.here, *pair.there, bytes, false, true);
  }
}

}  // namespace

TEST(runtime__stages) { exchange_staged_sizes({}); }

TEST(runtime__stages_of_several_flows_under_faults) {
  Knobs knobs;
  knobs.engines = 2;
  knobs.stripes = 3;
  knobs.fault_loss = 0.01;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.01;
  exchange_staged_sizes(knobs);
}

// If nothing is ever copied into a stage, the engines wait, and release the stages when the connection ends.
TEST(runtime__a_stage_that_stays_empty_is_let_go) {
  Pair pair({});
  sim::Staging out(pair.here->flows(), kRing, kPiece, 0);
  std::vector<std::uint8_t> received(1 << 20);
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_staged_send(out.stage(0), received.size(), &send), Status::ok);
  CHECK_EQUAL(pair.here->wait(send, 50'000'000), Status::timed_out);
  pair.here->quiesce(out.stage(0), sizeof(core::Stage));
  CHECK(send->done());
  CHECK_EQUAL(finish(*pair.here, send), Status::cancelled);
}

// Message 1 has its stripe on flow 1, where nothing is copied into its stage, and only an empty segment on flow 0,
// which also brings message 2. So neither flow 0 nor a message that is held says that the receive will never be
// complete.
TEST(runtime__a_receive_that_lacks_a_part_fails_when_the_peer_closes) {
  Knobs knobs;
  knobs.engines = 2;
  knobs.stripes = 2;
  Pair pair(knobs);
  exchange(*pair.here, *pair.there, 8, 0);
  sim::Staging out(pair.here->flows(), kRing, kPiece, 0);
  std::vector<std::uint8_t> room(250'000);
  const auto last = pattern(8, 1);
  Request *send = nullptr, *receive = nullptr, *eager = nullptr;
  CHECK_EQUAL(pair.there->post_receive(room.data(), room.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_staged_send(out.stage(0), room.size(), &send), Status::ok);
  CHECK_EQUAL(pair.here->post_send(last.data(), last.size(), 0, &eager), Status::ok);
  CHECK_EQUAL(finish(*pair.here, eager), Status::ok);
  CHECK(!receive->done());
  pair.here->close();
  CHECK_EQUAL(finish(*pair.there, receive), Status::connection_closed);
}

TEST(runtime__requests_are_bounded) {
  Pair pair({});
  std::vector<Request*> posted;
  std::vector<std::uint8_t> byte(1);
  for (;;) {
    Request* request = nullptr;
    const Status status = pair.there->post_receive(byte.data(), 1, 0, &request);
    if (status == Status::would_block) break;
    CHECK_EQUAL(status, Status::ok);
    posted.push_back(request);
    CHECK(posted.size() <= 1024);
  }
  CHECK(posted.size() >= 64);
  pair.there->close();
  for (Request* request : posted) CHECK(request->done() && request->status() == Status::cancelled);
}

TEST(runtime__a_message_too_long_fails_both) {
  Pair pair({});
  const auto sent = pattern(200'000, 1);
  std::vector<std::uint8_t> received(100'000);
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
  CHECK_EQUAL(finish(*pair.here, send), Status::message_too_long);
  CHECK_EQUAL(finish(*pair.there, receive), Status::message_too_long);
  CHECK_EQUAL(pair.here->health(), Status::message_too_long);
}

TEST(runtime__quiesce_lets_go) {
  Pair pair({});
  auto buffer = std::make_unique<std::vector<std::uint8_t>>(1 << 20);
  Request* receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(buffer->data(), buffer->size(), 0, &receive), Status::ok);
  std::uint8_t elsewhere = 0;
  pair.there->quiesce(&elsewhere, 1);
  CHECK(!receive->done());
  pair.there->quiesce(buffer->data() + 5, 10);
  CHECK(receive->done());
  CHECK_EQUAL(receive->status(), Status::cancelled);
  buffer.reset();
}

TEST(runtime__closing_tells_the_peer) {
  Pair pair({});
  std::vector<std::uint8_t> byte(1);
  Request* receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(byte.data(), 1, 0, &receive), Status::ok);
  pair.here->close();
  CHECK_EQUAL(finish(*pair.there, receive), Status::connection_closed);
  Request* late = nullptr;
  CHECK_EQUAL(pair.there->post_send(byte.data(), 1, 0, &late), Status::connection_closed);
}

TEST(runtime__a_runtime_that_goes_is_noticed) {
  Pair pair({});
  std::vector<std::uint8_t> byte(1);
  Request* receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(byte.data(), 1, 0, &receive), Status::ok);
  pair.here.reset();
  pair.b.reset();
  const Status status = finish(*pair.there, receive);
  CHECK(status == Status::connection_closed || status == Status::peer_dead);
  std::shared_ptr<Runtime> again;
  std::string error;
  Knobs knobs;
  knobs.interfaces = "lo";
  CHECK_EQUAL(Runtime::open(knobs, &again, &error), Status::ok);
  pair.b = again;
  pair.connect();
  exchange(*pair.here, *pair.there, 1000, 0);
}

TEST(runtime__many_connections_and_threads) {
  Knobs knobs;
  knobs.engines = 2;
  Pair pair(knobs);
  std::vector<std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>>> links;
  for (int i = 0; i < 12; ++i) {
    pair.connect();
    links.emplace_back(pair.here, pair.there);
  }
  std::vector<std::thread> threads;
  for (auto& link : links) {
    threads.emplace_back([&link] {
      for (const std::size_t bytes : {10, 20'000, 300'000}) exchange(*link.first, *link.second, bytes, 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pair.a->counters().datagrams_received > 0);
  // When ends start or close at the same time, a packet may come too early or too late: at most one per connection.
  CHECK(pair.a->counters().stray <= static_cast<std::int64_t>(links.size()));
}

// One thread releases a receive while another sends on the same connection: if the two directions shared data without
// a lock, TSan would report a data race.
TEST(runtime__a_receive_ends_while_another_thread_sends_first) {
  Pair pair({});
  std::uint8_t byte = 0;
  Request *receive = nullptr, *send = nullptr, *answer = nullptr;
  CHECK_EQUAL(pair.here->post_receive(&byte, 1, 0, &receive), Status::ok);
  CHECK_EQUAL(pair.there->post_send("a", 1, 0, &send), Status::ok);
  CHECK_EQUAL(pair.here->wait(receive, kPatienceNs), Status::ok);
  std::thread releases([&] { pair.here->release(receive); });
  CHECK_EQUAL(pair.here->post_send("b", 1, 0, &answer), Status::ok);
  releases.join();
  CHECK_EQUAL(pair.there->post_receive(&byte, 1, 0, &receive), Status::ok);
  CHECK_EQUAL(finish(*pair.there, receive), Status::ok);
  CHECK_EQUAL(finish(*pair.here, answer), Status::ok);
  CHECK_EQUAL(finish(*pair.there, send), Status::ok);
}

TEST(runtime__errors_say_what_there_is) {
  Knobs knobs;
  std::shared_ptr<Runtime> runtime;
  std::string error;
  knobs.interfaces = "nosuch0";
  CHECK_EQUAL(Runtime::open(knobs, &runtime, &error), Status::address_unavailable);
  CHECK(error.find("nosuch0") != std::string::npos && error.find("lo") != std::string::npos);
  knobs.interfaces = "lo";
  knobs.window_policy = "nosuch";
  CHECK_EQUAL(Runtime::open(knobs, &runtime, &error), Status::invalid_argument);
  CHECK(error.find("swift") != std::string::npos);
  knobs.window_policy = "swift";
  CHECK_EQUAL(Runtime::open(knobs, &runtime, &error), Status::ok);
  std::unique_ptr<Dial> dial;
  Handle garbage;
  std::memset(garbage.bytes, 0x5A, sizeof garbage.bytes);
  CHECK_EQUAL(runtime->connect(0, garbage, "", &dial, &error), Status::invalid_argument);
  CHECK_EQUAL(runtime->connect(7, garbage, "", &dial, &error), Status::invalid_argument);
  CHECK_EQUAL(runtime->connect(0, "127.0.0.1", 1, "", &dial, &error), Status::ok);
  std::shared_ptr<Connection> connection;
  for (const std::int64_t until = now_ns() + kPatienceNs; dial->poll(&connection) == Status::would_block;) {
    CHECK(now_ns() < until);
  }
  CHECK_EQUAL(dial->poll(&connection), Status::refused);
  CHECK(dial->error().find("127.0.0.1") != std::string::npos);
}

namespace {

// Two connected runtimes with different knobs.
struct UnequalPair {
  std::shared_ptr<Runtime> a, b;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Connection> here, there;

  UnequalPair(Knobs for_a, Knobs for_b) {
    std::string error;
    for_a.interfaces = for_b.interfaces = "lo";
    for_a.local = for_b.local = LocalMode::off;
    CHECK_EQUAL(Runtime::open(for_a, &a, &error), Status::ok);
    CHECK_EQUAL(Runtime::open(for_b, &b, &error), Status::ok);
    CHECK_EQUAL(a->listen(0, 0, true, "", &listener, &error), Status::ok);
    here = dial(listener->port());
    there = accept(*listener);
  }
  std::shared_ptr<Connection> dial(std::uint16_t port) {
    std::unique_ptr<Dial> dial;
    std::string error;
    std::shared_ptr<Connection> made;
    CHECK_EQUAL(b->connect(0, "127.0.0.1", port, "", &dial, &error), Status::ok);
    for (const std::int64_t until = now_ns() + kPatienceNs; made == nullptr;) {
      const Status status = dial->poll(&made);
      CHECK(status == Status::would_block || status == Status::ok);
      CHECK(now_ns() < until);
    }
    return made;
  }
  static std::shared_ptr<Connection> accept(Listener& listener) {
    std::shared_ptr<Connection> made;
    for (const std::int64_t until = now_ns() + kPatienceNs; made == nullptr;) {
      static_cast<void>(listener.accept(&made));
      CHECK(now_ns() < until);
    }
    return made;
  }
};

Status send(Connection& connection, const std::vector<std::uint8_t>& data) {
  Request* request = nullptr;
  CHECK_EQUAL(connection.post_send(data.data(), data.size(), 0, &request), Status::ok);
  return finish(connection, request);
}

Status receive(Connection& connection, std::vector<std::uint8_t>* data) {
  Request* request = nullptr;
  const Status status = connection.post_receive(data->data(), data->size(), 0, &request);
  return status == Status::ok ? finish(connection, request) : status;
}

}  // namespace

TEST(runtime__ends_may_differ_in_their_knobs) {
  for (const bool larger : {false, true}) {
    Knobs a, b;
    (larger ? a : b).eager_bytes = 65'536;
    (larger ? a : b).eager_slots = 2;
    a.fault_loss = b.fault_loss = 0.2;
    a.stripes = 3;
    b.engines = 2;
    b.paths = 3;
    UnequalPair pair(a, b);
    for (const std::size_t bytes : {20'000, 300'000, 5, 60'000, 9'000}) {
      exchange(*pair.here, *pair.there, bytes, 300'000);
      exchange(*pair.there, *pair.here, bytes, 0);
    }
  }
}

// Messages sent before a close are received, also while the receiving end still sends, and if a short message completed
// a large receive posted on every stripe.
TEST(runtime__what_was_sent_before_the_close_is_received) {
  for (const std::int64_t stripes : {1, 4}) {
    Knobs knobs;
    knobs.engines = 2;
    knobs.stripes = stripes;
    UnequalPair pair(knobs, knobs);
    std::vector<std::uint8_t> data(1 << 20);
    Request *first = nullptr, *pending = nullptr;
    CHECK_EQUAL(pair.there->post_receive(data.data(), data.size(), 0, &first), Status::ok);
    CHECK_EQUAL(send(*pair.here, {0}), Status::ok);
    CHECK_EQUAL(finish(*pair.there, first), Status::ok);
    const auto unwanted = pattern(500'000, 3);
    CHECK_EQUAL(pair.there->post_send(unwanted.data(), unwanted.size(), 0, &pending), Status::ok);
    for (std::uint8_t number = 1; number < 5; ++number) CHECK_EQUAL(send(*pair.here, {number}), Status::ok);
    pair.here->close();
    for (std::uint8_t number = 1; number < 5; ++number) {
      CHECK_EQUAL(receive(*pair.there, &data), Status::ok);
      CHECK_EQUAL(data[0], number);
    }
    CHECK_EQUAL(finish(*pair.there, pending), Status::connection_closed);
    CHECK_EQUAL(receive(*pair.there, &data), Status::connection_closed);
  }
}

TEST(runtime__a_port_is_one_listeners) {
  UnequalPair pair({}, {});
  std::unique_ptr<Listener> second;
  std::string error;
  CHECK_EQUAL(pair.a->listen(0, 0, true, "", &second, &error), Status::ok);
  CHECK(second->port() != pair.listener->port());
  const auto here = pair.dial(second->port());
  const auto there = UnequalPair::accept(*second);
  exchange(*here, *there, 100, 0);
  // Close the listener and reuse its port: the peer's control socket stays the same, but the port has another listener.
  const std::uint16_t port = second->port();
  second.reset();
  CHECK_EQUAL(pair.a->listen(0, port, true, "", &second, &error), Status::ok);
  const auto again = pair.dial(port);
  const auto accepted = UnequalPair::accept(*second);
  exchange(*again, *accepted, 100, 0);
}

TEST(runtime__the_knobs_port_serves_many_listeners) {
  Knobs knobs;
  {
    UnequalPair scout({}, {});
    knobs.control_port = std::to_string(scout.listener->port());  // a port that was just free
  }
  Knobs other;
  UnequalPair pair(knobs, other);
  CHECK_EQUAL(std::to_string(pair.listener->port()), knobs.control_port);
  std::vector<std::unique_ptr<Listener>> more(5);
  std::string error;
  for (auto& listener : more) {
    CHECK_EQUAL(pair.a->listen(0, 0, true, "", &listener, &error), Status::ok);
    std::unique_ptr<Dial> dial;
    CHECK_EQUAL(pair.b->connect(0, listener->handle(), "", &dial, &error), Status::ok);
    const auto there = UnequalPair::accept(*listener);
    std::shared_ptr<Connection> here;
    for (const std::int64_t until = now_ns() + kPatienceNs; here == nullptr;) {
      static_cast<void>(dial->poll(&here));
      CHECK(now_ns() < until);
    }
    exchange(*here, *there, 10, 0);
  }
  CHECK(std::to_string(more[0]->port()) != knobs.control_port);
}

namespace {

// Sends short messages, into receives of a capacity that are posted before them, 64 at a time.
void send_short(Pair* pair, int count, std::size_t capacity) {
  const auto sent = pattern(8, 7);
  std::vector<std::uint8_t> room(capacity);
  for (int done = 0; done < count; done += 64) {
    std::vector<Request*> sends(64), receives(64);
    for (Request*& each : receives) {
      CHECK_EQUAL(pair->there->post_receive(room.data(), room.size(), 0, &each), Status::ok);
    }
    for (Request*& each : sends) CHECK_EQUAL(pair->here->post_send(sent.data(), sent.size(), 0, &each), Status::ok);
    for (Request* each : sends) CHECK_EQUAL(finish(*pair->here, each), Status::ok);
    for (Request* each : receives) CHECK_EQUAL(finish(*pair->there, each), Status::ok);
  }
}

}  // namespace

// All short messages go over one flow. The others must not fall so far behind that they refuse what they hear.
TEST(runtime__flows_that_carry_no_short_messages_keep_up) {
  for (const std::size_t capacity : {std::size_t{8}, std::size_t{1} << 20}) {
    Knobs knobs;
    knobs.engines = 2;
    knobs.stripes = 3;
    knobs.peer_silence_ns = 1'000'000'000;
    Pair pair(knobs);
    send_short(&pair, 10'000, capacity);
    // A receive for which nothing comes for longer than the limit for a flow without progress.
    std::vector<std::uint8_t> room(1 << 20);
    Request* receive = nullptr;
    CHECK_EQUAL(pair.there->post_receive(room.data(), room.size(), 0, &receive), Status::ok);
    std::this_thread::sleep_for(std::chrono::milliseconds(2'500));
    CHECK(!receive->done());
    const auto sent = pattern(room.size(), 3);
    Request* send = nullptr;
    CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
    CHECK_EQUAL(finish(*pair.here, send), Status::ok);
    CHECK_EQUAL(finish(*pair.there, receive), Status::ok);
    CHECK(sent == room);
    send_short(&pair, 1'000, capacity);
    for (const auto& runtime : {pair.a, pair.b}) CHECK_EQUAL(runtime->counters().malformed, 0);
  }
}

TEST(runtime__counters_outlive_the_flows) {
  Pair pair(Knobs{});
  exchange(*pair.here, *pair.there, 1'000'000, 0);
  pair.there.reset();
  pair.a.reset();
  pair.listener.reset();  // drops the last reference to the other runtime, which ends as if its process had
  for (const std::int64_t until = now_ns() + kPatienceNs; pair.here->health() == Status::ok;) CHECK(now_ns() < until);
  for (int i = 0; i < 100; ++i) {
    const ConnectionCounters counters = pair.here->counters();
    CHECK_EQUAL(counters.bytes_sent, 1'000'000);
    CHECK_EQUAL(counters.paths.size(), 32u);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(runtime__a_wait_may_be_as_long_as_there_are_numbers) {
  Pair pair{Knobs{}};
  const std::vector<std::uint8_t> sent = pattern(100, 1);
  std::vector<std::uint8_t> received(sent.size());
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it waits; an earlier message ends it as well
    CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
  });
  const Status status = pair.there->wait(receive, INT64_MAX);
  later.join();
  CHECK_EQUAL(status, Status::ok);
  CHECK(sent == received);
  CHECK_EQUAL(finish(*pair.here, send), Status::ok);
  pair.there->release(receive);
}
