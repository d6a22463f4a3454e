// Tests the optional hooks of window policies: a timer runs only while there is something to send, a timer in the past
// does not keep the stack busy, and each burst is told. This file defines the policy.
#include "native/policy/loader.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::policy::Descriptor;
using weft::policy::Family;
using weft::policy::WindowEvent;
using weft::policy::WindowResult;
using weft::test::Pair;
using weft::test::Wired;

namespace {

constexpr u64 kBytes = 20'000;

// What the policy was told, and what it asks for.
struct Told {
  int timers = 0, sends = 0;
  i64 sent_bytes = 0, timer_ns = 0;
  i64 asks_ns = 0;  // how long after each event on_timer is wanted; 0: no change, < 0: never
} told;

std::int32_t hook(void*, void*, std::int64_t, const void*, const void* given, void* result) {
  const auto& event = *static_cast<const WindowEvent*>(given);
  told.timers += event.kind == 3 ? 1 : 0;
  told.sends += event.kind == 4 ? 1 : 0;
  told.sent_bytes += event.sent_bytes;
  if (event.kind == 3) told.timer_ns = event.now_ns;
  auto& answer = *static_cast<WindowResult*>(result);
  answer.window_bytes = 64'000;
  answer.next_timer_ns = told.asks_ns > 0 ? event.now_ns + told.asks_ns : told.asks_ns;
  return 0;
}

Descriptor with_hooks() {
  Descriptor made = weft::policy::fixed(Family::window);
  made.descriptor_bytes = sizeof made;
  made.result_bytes = sizeof(WindowResult);
  for (auto& each : made.hooks) each = hook;
  for (auto& each : made.later_hooks) each = hook;
  made.hook_count = weft::policy::kMaxHooks;
  return made;
}

struct Bench {
  explicit Bench(i64 asks_ns) : descriptor(with_hooks()), config(config_of(&descriptor)), pair(config) {
    told = Told{};
    told.asks_ns = asks_ns;
    CHECK_EQUAL(weft::policy::complaint(descriptor), "");
    CHECK(pair.opened);
    while (pair.exchange()) {
    }
  }
  static StackConfig config_of(const Descriptor* descriptor) {
    StackConfig made = weft::test::shipped_config();
    made.window = {descriptor, nullptr};
    return made;
  }
  void message(const std::function<bool(const Wired&)>& drops = nullptr) {
    CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, data.data(), kBytes), Status::ok);
    int done = 0;
    CHECK(pair.run([&] { return (done += pair.events(0, Event::Kind::send_done)) != 0; }, drops));
    CHECK(buffer == data);
  }

  Descriptor descriptor;
  StackConfig config;
  Pair pair;
  std::vector<u8> data = weft::test::pattern(kBytes, 1), buffer = std::vector<u8>(kBytes);
  ReceiveTicket ticket;
};

}  // namespace

TEST(window_hooks__each_burst_is_told_with_its_bytes) {
  Bench bench(0);
  bench.message();
  CHECK(told.sends > 0);
  CHECK_EQUAL(told.sent_bytes, static_cast<i64>(kBytes));
  CHECK_EQUAL(told.timers, 0);
}

TEST(window_hooks__a_timer_waits_while_there_is_nothing_to_send) {
  Bench bench(1'000'000'000);
  bench.message();
  told.asks_ns = -1;
  const i64 due_ns = bench.pair.now_ns + 1'000'000'000;
  bench.pair.now_ns += 30'000'000'000;
  for (Stack& each : bench.pair.stack) each.on_timer(bench.pair.now_ns);
  while (bench.pair.exchange()) {
  }
  CHECK_EQUAL(told.timers, 0);
  bench.message();
  CHECK_EQUAL(told.timers, 1);
  CHECK(told.timer_ns > due_ns);
  bench.message();
  CHECK_EQUAL(told.timers, 1);
}

TEST(window_hooks__a_timer_in_the_past_fires_after_ten_microseconds) {
  Bench bench(1);
  bool dropped = false;
  const i64 begin_ns = bench.pair.now_ns;
  bench.message([&](const Wired& packet) { return !dropped && packet.to == 1 && (dropped = true); });
  CHECK(told.timers > 1);
  CHECK(told.timers <= (bench.pair.now_ns - begin_ns) / 10'000);
}

TEST(window_hooks__a_library_with_more_hooks_than_its_descriptor_holds_is_refused) {
  Descriptor made = with_hooks();
  made.descriptor_bytes = weft::policy::kDescriptorBytesMin + 8;
  CHECK(weft::policy::complaint(made).find("too short") != std::string::npos);
  made = with_hooks();
  made.hook_count = 7;
  CHECK(weft::policy::complaint(made).find("number of hooks") != std::string::npos);
  made = with_hooks();
  made.event_bytes = sizeof(WindowEvent) - 8;  // half of the telemetry
  CHECK(weft::policy::complaint(made).find("event or result") != std::string::npos);
}
