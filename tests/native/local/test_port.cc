// Tests connections through shared memory: two runtimes of one process, which meet as two processes do.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "native/message/host_message.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::message;
using engine::LocalMode;
using Pair = weft::test::RuntimePair;
using weft::test::finish;
using weft::test::kPatienceNs;
using weft::test::pattern;
using Bytes = std::vector<std::uint8_t>;

// Whether the network carried none of the connection's messages.
bool is_local(Connection& connection) { return connection.counters().segments_sent == 0; }

constexpr std::size_t kSizes[] = {0, 1, 15, 16, 17, 4096, 65'535, 65'536, 262'144, 262'145, 1'500'001};

engine::Knobs with_copiers(std::int64_t count) {
  engine::Knobs knobs;
  knobs.copiers = count;
  return knobs;
}

void exchange(LocalMode mode, std::int64_t copiers = 1) {
  Pair pair(with_copiers(copiers), false, mode);
  std::vector<Bytes> sent, received;
  std::vector<engine::Request*> sends, receives;
  for (const std::size_t size : kSizes) {
    sent.push_back(pattern(size, static_cast<std::uint32_t>(size)));
    received.emplace_back(size + 3, 0xEE);
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sends.emplace_back();
    receives.emplace_back();
    CHECK_EQUAL(pair.here->post_send(sent[i].data(), sent[i].size(), 0, &sends.back()), Status::ok);
    CHECK_EQUAL(pair.there->post_receive(received[i].data(), received[i].size(), 0, &receives.back()), Status::ok);
  }
  // Nobody polls: the movers do all the work.
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK_EQUAL(pair.there->wait(receives[i], kPatienceNs), Status::ok);
    CHECK_EQUAL(receives[i]->bytes(), sent[i].size());
    CHECK(std::equal(sent[i].begin(), sent[i].end(), received[i].begin()));
    CHECK_EQUAL(received[i].back(), 0xEE);
    CHECK_EQUAL(finish(*pair.there, receives[i]), Status::ok);
    CHECK_EQUAL(finish(*pair.here, sends[i]), Status::ok);
  }
  CHECK(is_local(*pair.here));
}

// Moves messages both ways from two threads that poll, as NCCL does.
void poll_both_ways(LocalMode mode, std::int64_t copiers = 1) {
  Pair pair(with_copiers(copiers), false, mode);
  constexpr int kRounds = 60;
  const bool done = test::on_connections(&pair, 2, [](Connection& here, Connection& there) {
    std::atomic<int> wrong{0};
    const auto run = [&](Connection& one, std::uint32_t seed) {
      for (std::uint32_t i = 0; i < kRounds && wrong == 0; ++i) {
        const std::size_t size = kSizes[(i * 5 + 3) % std::size(kSizes)];
        Bytes sent = pattern(size, i + seed), expected = pattern(size, i + 1 - seed), received(size + 1, 0xEE);
        engine::Request *send = nullptr, *receive = nullptr;
        if (one.post_receive(received.data(), size + 1, 0, &receive) != Status::ok ||
            one.post_send(sent.data(), size, 0, &send) != Status::ok) {
          ++wrong;
          return;
        }
        for (engine::Request* request : {send, receive}) {
          for (const std::int64_t until = engine::now_ns() + kPatienceNs; !request->done();) {
            one.progress(*request);
            if (engine::now_ns() > until) ++wrong;
            if (wrong != 0) return;
          }
        }
        wrong += send->status() != Status::ok || receive->status() != Status::ok || receive->bytes() != size;
        wrong += !std::equal(expected.begin(), expected.end(), received.begin()) || received.back() != 0xEE;
        one.release(send);
        one.release(receive);
      }
    };
    std::thread other([&] { run(there, 1); });
    run(here, 0);
    other.join();
    CHECK_EQUAL(wrong.load(), 0);
  });
  CHECK(done);
}

// Closes one end while long messages move, and looks whether any buffer changes after its request has ended.
void close_in_the_middle(LocalMode mode, std::int64_t copiers = 1) {
  Pair pair(with_copiers(copiers), false, mode);
  for (int round = 0; round < 12; ++round) {
    pair.connect();
    Bytes sent = pattern(3'000'000, static_cast<std::uint32_t>(round)), received(sent.size(), 0xEE);
    engine::Request *send = nullptr, *receive = nullptr;
    CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
    CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
    if (round % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    const bool by_sender = round % 2 == 0;
    (by_sender ? pair.here : pair.there)->close();
    if (by_sender) std::fill(sent.begin(), sent.end(), 0x11);  // the caller's again
    const Status got = finish(*pair.there, receive);
    const Bytes now = received;
    if (got == Status::ok) CHECK(received == pattern(3'000'000, static_cast<std::uint32_t>(round)));
    static_cast<void>(finish(*pair.here, send));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(received == now);
  }
}

}  // namespace

TEST(port__messages_of_all_sizes_arrive) { exchange(LocalMode::automatic); }
TEST(port__messages_of_all_sizes_arrive_through_the_ring) { exchange(LocalMode::ring); }
TEST(port__polling_callers_move_both_ways) { poll_both_ways(LocalMode::automatic); }
TEST(port__polling_callers_move_both_ways_through_the_ring) { poll_both_ways(LocalMode::ring); }
TEST(port__nothing_is_written_after_a_close) { close_in_the_middle(LocalMode::automatic); }
TEST(port__nothing_is_written_after_a_close_of_the_ring) { close_in_the_middle(LocalMode::ring); }

TEST(port__messages_of_all_sizes_arrive_from_several_copiers) { exchange(LocalMode::automatic, 3); }
TEST(port__polling_callers_move_both_ways_with_several_copiers) { poll_both_ways(LocalMode::automatic, 3); }
TEST(port__nothing_is_written_after_a_close_by_several_copiers) { close_in_the_middle(LocalMode::automatic, 3); }

// So many messages that some go the other way than the rest, for comparison.
TEST(port__messages_that_are_lent_and_not_lent_take_turns) {
  Pair pair(with_copiers(2), false, LocalMode::automatic);
  constexpr std::size_t kCount = 200, kBytes = 150'000, kFlight = 8;
  Bytes sent = pattern(kBytes + kCount, 7);
  std::vector<Bytes> received(kFlight, Bytes(kBytes));
  std::vector<engine::Request*> sends(kFlight), receives(kFlight);
  for (std::size_t i = 0; i < kCount + kFlight; ++i) {
    const std::size_t place = i % kFlight;
    if (i >= kFlight) {
      CHECK_EQUAL(finish(*pair.there, receives[place]), Status::ok);
      CHECK_EQUAL(finish(*pair.here, sends[place]), Status::ok);
      CHECK(std::equal(received[place].begin(), received[place].end(), sent.begin() + static_cast<long>(i - kFlight)));
    }
    if (i >= kCount) continue;
    CHECK_EQUAL(pair.there->post_receive(received[place].data(), kBytes, 0, &receives[place]), Status::ok);
    CHECK_EQUAL(pair.here->post_send(sent.data() + i, kBytes, 0, &sends[place]), Status::ok);
  }
  CHECK(is_local(*pair.here));
}

TEST(port__a_message_that_is_too_long_fails_both_ends) {
  Pair pair({}, false, LocalMode::automatic);
  Bytes sent(100), received(99);
  engine::Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
  CHECK_EQUAL(finish(*pair.there, receive), Status::message_too_long);
  static_cast<void>(finish(*pair.here, send));
  // The other end hears of it before or after this post.
  Status heard = pair.here->post_receive(received.data(), received.size(), 0, &receive);
  if (heard == Status::ok) heard = finish(*pair.here, receive);
  CHECK_EQUAL(heard, Status::message_too_long);
}

TEST(port__a_knob_of_the_network_turns_it_off) {
  engine::Knobs knobs;
  knobs.path_policy = "fixed";
  Pair pair(knobs, false, LocalMode::automatic);
  CHECK(pair.a->summary().find("local off (WEFT_PATH_POLICY)") != std::string::npos);
  Bytes sent = pattern(1'000, 1), received(1'000);
  engine::Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
  CHECK_EQUAL(finish(*pair.there, receive), Status::ok);
  CHECK_EQUAL(finish(*pair.here, send), Status::ok);
  CHECK(!is_local(*pair.here));
}

TEST(port__a_listener_that_takes_no_memory_gets_all_flows) {
  engine::Knobs knobs;
  knobs.engines = 3;
  Pair pair(knobs, false, LocalMode::automatic);
  std::string error;
  CHECK_EQUAL(pair.a->listen(0, 0, false, "window=cubic", &pair.listener, &error), Status::ok);
  for (int again = 0; again < 3; ++again) {
    pair.connect();
    CHECK_EQUAL(pair.here->flows(), 3u);
    CHECK_EQUAL(pair.there->flows(), 3u);
    Bytes sent = pattern(1'000'000, 1), received(sent.size());
    engine::Request *send = nullptr, *receive = nullptr;
    CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
    CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
    CHECK_EQUAL(finish(*pair.there, receive), Status::ok);
    CHECK_EQUAL(finish(*pair.here, send), Status::ok);
    CHECK(sent == received);
    CHECK(!is_local(*pair.here));
  }
}
