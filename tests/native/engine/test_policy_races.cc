// Tests that no engine runs an unloaded policy library or reads freed parameters while policies are changed for the
// process and for live connections, and other threads dial with their own policies, send and close.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using weft::test::kPatienceNs;

// For longer runs: WEFT_TEST_SECONDS=60 test_policy_races.
std::int64_t run_ns() {
  const char* seconds = std::getenv("WEFT_TEST_SECONDS");
  return (seconds == nullptr ? 2 : std::atoll(seconds)) * 1'000'000'000;
}

void exchange(Connection& from, Connection& to, std::size_t bytes) {
  const std::vector<std::uint8_t> sent = test::pattern(bytes, 7);
  std::vector<std::uint8_t> received(bytes);
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(to.post_receive(received.data(), bytes, 0, &receive), Status::ok);
  CHECK_EQUAL(from.post_send(sent.data(), bytes, 0, &send), Status::ok);
  CHECK_EQUAL(test::finish(to, receive), Status::ok);
  CHECK_EQUAL(test::finish(from, send), Status::ok);
  CHECK(sent == received);
}

// Policies that are neither defaults nor set by change(), so that each library is loaded only for a dial and unloaded
// when nothing refers to it.
const char* own_policies(int round) {
  const char* texts[] = {"window=cubic path=flowlet loss=sleek", "window=aimd path=plb loss=go_back_n credit=grant",
                         "window=timely loss=sleek", "window=fixed:window_bytes=300000 path=bitmap"};
  return texts[round % 4];
}

struct Ends {
  std::shared_ptr<Connection> here, there;
};

// After the dial is destroyed, only engines refer to its policies.
Ends dial_with(Listener& listener, Runtime& dialling, const std::string& policies) {
  std::string error;
  std::unique_ptr<Dial> dial;
  std::shared_ptr<Connection> here, there;
  CHECK_EQUAL(dialling.connect(0, listener.handle(), policies, &dial, &error), Status::ok);
  for (const std::int64_t until = now_ns() + kPatienceNs; here == nullptr || there == nullptr;) {
    if (here == nullptr && dial->poll(&here) != Status::would_block) {
      CHECK(here != nullptr);
      dial.reset();
    }
    if (there == nullptr) static_cast<void>(listener.accept(&there));
    CHECK(now_ns() < until);
  }
  return {here, there};
}

using Texts = std::pair<const char*, std::string>;

Texts change_of(int round) {
  switch (round % 7) {
    case 0:
      return {"window", "fixed:window_bytes=" + std::to_string(100'000 + round)};
    case 1:
      return {"window", "swift"};
    case 2:
      return {"path", "reps"};
    case 3:
      return {"loss", "selective"};
    case 4:
      return {"path", "oblivious"};
    case 5:
      return {"window", "dctcp"};
    default:
      return {"loss", "rack"};
  }
}

}  // namespace

TEST(policy_races__a_change_unloads_nothing_that_a_dial_has_just_opened) {
  Knobs knobs;
  knobs.engines = 2;
  test::RuntimePair pair(knobs);
  const std::int64_t until = now_ns() + run_ns();
  std::atomic<int> changes{0}, dials{0};
  std::thread changer([&] {
    for (; now_ns() < until || changes < 32; ++changes) {
      const auto& [family, text] = change_of(changes);
      std::string error;
      CHECK_EQUAL(pair.here->change_policy(family, text, PolicyChange::policy, &error), Status::ok);
      CHECK_EQUAL(pair.b->change_policy(family, text, PolicyChange::policy, &error), Status::ok);
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // gives dials a chance to lock the policy board
    }
  });
  std::thread other([&] {  // connections of this thread change their policies
    std::unique_ptr<Listener> listener;
    std::string error;
    CHECK_EQUAL(pair.a->listen(0, 0, false, own_policies(1), &listener, &error), Status::ok);
    for (int i = 0; now_ns() < until || i < 32; ++i, ++dials) {
      const Ends ends = dial_with(*listener, *pair.b, own_policies(i));
      const auto& [family, text] = change_of(i);
      CHECK_EQUAL(ends.here->change_policy(family, text, PolicyChange::policy, &error), Status::ok);
      exchange(*ends.there, *ends.here, 50'000);
    }
  });
  for (int i = 0; now_ns() < until || i < 32; ++i, ++dials) {
    const Ends ends = dial_with(*pair.listener, *pair.b, own_policies(i));
    exchange(*ends.here, *ends.there, 100);
  }
  changer.join();
  other.join();
  CHECK_EQUAL(pair.a->counters().events_policy_failed + pair.b->counters().events_policy_failed, 0);
}

TEST(policy_races__a_dial_gets_its_path_policy_where_memory_is_used_again) {
  test::RuntimePair pair{Knobs{}};
  std::string error;
  for (int i = 0; i < 20; ++i) {
    const std::string wanted = "weighted:burst_bytes=" + std::to_string(10'000 + i);
    const Ends ends = dial_with(*pair.listener, *pair.b, "path=" + wanted);
    std::string name;
    for (const PolicyInfo& info : ends.here->policies()) {
      if (info.family == "path") name = info.name;
    }
    CHECK_EQUAL(name, "weighted");
    // Change the policy, so that the dial's policy is freed and its memory is used again.
    CHECK_EQUAL(ends.here->change_policy("path", "reps", PolicyChange::policy, &error), Status::ok);
  }
}
