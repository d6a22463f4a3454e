// Tests that both ends stop using a path that is dead towards the receiver or in both directions, so that messages sent
// one after the other do not each wait for a timeout. They do wait if the path is dead only from the receiver.
#include <algorithm>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;

namespace {

constexpr i64 kMs = 1'000'000;
constexpr u64 kBytes = 20'000;
constexpr u8 kDead = 1;

// Sends messages one after the other over four paths, one of which dies after the first few messages. Returns how long
// the later messages took.
std::vector<i64> times(const std::function<bool(const Wired&)>& dies, bool search_size) {
  Pair pair(weft::test::shipped_config(), 4, 8972, 1 << 20, search_size);
  CHECK(pair.opened);
  const std::vector<u8> sent = weft::test::pattern(kBytes, 1);
  std::vector<u8> buffer(kBytes);
  std::vector<i64> found;
  for (int i = 0; i < 200; ++i) {
    ReceiveTicket ticket;
    const i64 begin_ns = pair.now_ns;
    bool done = false;
    CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
    const auto over = [&] {
      for (Event event; pair.stack[0].poll_event(&event);) done = done || event.kind == Event::Kind::send_done;
      return done;
    };
    const bool ended = pair.run(over, i < 20 ? std::function<bool(const Wired&)>() : dies, 1000 * kMs);
    CHECK(ended);
    if (i >= 100) found.push_back(pair.now_ns - begin_ns);
  }
  CHECK(buffer == sent);
  return found;
}

}  // namespace

TEST(dead_paths__both_ends_leave_a_path_that_carries_nothing_to_the_receiver) {
  for (const bool search_size : {false, true}) {
    const auto forth = [](const Wired& packet) { return packet.to == 1 && packet.path == kDead; };
    const auto both = [](const Wired& packet) { return packet.path == kDead; };
    for (const std::function<bool(const Wired&)>& dies : {std::function<bool(const Wired&)>(forth), {both}}) {
      const std::vector<i64> took = times(dies, search_size);
      // A message takes three exchanges of 20 us. If it waited for a timeout, it would take a millisecond or more.
      CHECK_EQUAL(std::count_if(took.begin(), took.end(), [](i64 ns) { return ns >= kMs; }), 0);
    }
  }
}
