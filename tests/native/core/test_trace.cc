// Tests that sinks get every event of a stack in order, with time, flow and message, only of the kinds that they
// subscribed to, and none after they unsubscribe.
#include <string>
#include <vector>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
using Kind = Event::Kind;

namespace {

constexpr i64 kMs = 1'000'000;

class Seen final : public TraceSink {
 public:
  struct Entry {
    i64 now_ns;
    Event event;
  };
  void on_event(i64 now_ns, const Event& event) noexcept override { entries.push_back({now_ns, event}); }
  std::vector<Entry> of(Kind kind) const {
    std::vector<Entry> out;
    for (const Entry& entry : entries) {
      if (entry.event.kind == kind) out.push_back(entry);
    }
    return out;
  }
  std::vector<Entry> entries;
};

// Sends one message of `bytes` from end 0 to end 1; the receive is posted first.
bool transfer(Pair* pair, u64 bytes, const std::function<bool(const Wired&)>& drops = nullptr) {
  std::vector<u8> data(bytes), buffer(bytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair->receive(1, buffer.data(), bytes, &ticket), Status::ok);
  CHECK_EQUAL(pair->send(0, data.data(), bytes), Status::ok);
  bool sent = false, placed = false;
  return pair->run(
      [&] {
        for (Event event; pair->stack[0].poll_event(&event);) sent = sent || event.kind == Kind::send_done;
        for (Event event; pair->stack[1].poll_event(&event);) placed = placed || event.kind == Kind::stripe_placed;
        return sent && placed;
      },
      drops);
}

void expect_life(const Seen& seen, u64 message, u64 bytes, bool receives) {
  std::vector<Kind> life;
  i64 last_ns = 0;
  for (const auto& [now_ns, event] : seen.entries) {
    CHECK(now_ns >= last_ns);
    last_ns = now_ns;
    const bool about_message = event.kind == Kind::message_posted || event.kind == Kind::message_started ||
                               event.kind == Kind::send_done || event.kind == Kind::stripe_placed;
    if (!about_message || event.message != message) continue;
    CHECK_EQUAL(event.value, bytes);
    CHECK_EQUAL(event.receives, receives);
    life.push_back(event.kind);
  }
  CHECK((life == std::vector<Kind>{Kind::message_posted, Kind::message_started,
                                   receives ? Kind::stripe_placed : Kind::send_done}));
}

}  // namespace

TEST(trace__a_message_is_seen_from_post_to_completion_at_both_ends) {
  Pair pair{StackConfig{}};
  Seen seen[2];
  for (int end = 0; end < 2; ++end) CHECK(pair.stack[end].trace().subscribe(&seen[end], kTraceEvents));
  for (const u64 bytes : {u64{0}, u64{700}, u64{100'000}}) CHECK(transfer(&pair, bytes));
  for (int end = 0; end < 2; ++end) {
    expect_life(seen[end], 0, 0, end == 1);
    expect_life(seen[end], 1, 700, end == 1);
    expect_life(seen[end], 2, 100'000, end == 1);
    CHECK_EQUAL(seen[end].of(Kind::message_failed).size(), 0u);
  }
}

// The message arrives before its receive is posted, and the receive completes as soon as it is posted.
TEST(trace__an_eager_message_starts_before_it_is_posted) {
  Pair pair{StackConfig{}};
  Seen seen;
  CHECK(pair.stack[1].trace().subscribe(&seen, kTraceEvents));
  const std::vector<u8> data(500);
  CHECK_EQUAL(pair.send(0, data.data(), data.size()), Status::ok);
  CHECK(pair.run([&] { return !seen.of(Kind::message_started).empty(); }));
  std::vector<u8> buffer(500);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(1, buffer.data(), buffer.size(), &ticket), Status::ok);
  std::vector<Kind> kinds;
  for (const auto& entry : seen.entries) kinds.push_back(entry.event.kind);
  CHECK((kinds == std::vector<Kind>{Kind::message_started, Kind::message_posted, Kind::stripe_placed}));
}

TEST(trace__losses_timeouts_and_a_path_that_dies_and_heals_are_seen) {
  Pair pair{weft::test::shipped_config()};
  Seen seen;
  CHECK(pair.stack[0].trace().subscribe(&seen, kTraceEvents));
  CHECK(transfer(&pair, 50'000));
  const auto dead = [](const Wired& packet) { return packet.path == 2; };
  for (int i = 0; i < 50; ++i) CHECK(transfer(&pair, 50'000, dead));
  CHECK_EQUAL(seen.of(Kind::path_down).size(), 1u);
  CHECK(!seen.of(Kind::path_probed).empty());
  CHECK(!seen.of(Kind::loss).empty());
  CHECK(!seen.of(Kind::timeout).empty());
  i64 lost = 0;
  for (const auto& entry : seen.of(Kind::loss)) {
    CHECK_EQUAL(static_cast<int>(entry.event.path), 2);
    CHECK_EQUAL(entry.event.peer, pair.peer[0]);
    lost += static_cast<i64>(entry.event.value);
  }
  CHECK_EQUAL(lost, static_cast<i64>(pair.stack[0].flow(pair.flow[0])->counters().segments_lost));
  CHECK(pair.run([&] { return !seen.of(Kind::path_up).empty(); }));
  CHECK_EQUAL(seen.of(Kind::path_up).size(), 1u);
  CHECK_EQUAL(static_cast<int>(seen.of(Kind::path_up)[0].event.path), 2);
  CHECK(seen.of(Kind::path_up)[0].now_ns > seen.of(Kind::path_down)[0].now_ns);
}

TEST(trace__messages_of_a_dead_peer_fail_once_each) {
  Pair pair{StackConfig{}};
  Seen seen;
  CHECK(pair.stack[0].trace().subscribe(&seen, kTraceEvents));
  std::vector<u8> data(100'000), buffer(100'000);
  ReceiveTicket tickets[2];
  for (int i = 0; i < 2; ++i) CHECK_EQUAL(pair.send(0, data.data(), data.size()), Status::ok);
  for (ReceiveTicket& ticket : tickets) CHECK_EQUAL(pair.receive(0, buffer.data(), 9'000, &ticket), Status::ok);
  pair.stack[0].fail_peer(pair.now_ns + kMs, pair.peer[0], Status::peer_dead);
  pair.stack[0].close_flow(pair.now_ns + 2 * kMs, pair.flow[0], Status::cancelled);
  pair.stack[0].release_flow(pair.flow[0]);
  const auto failed = seen.of(Kind::message_failed);
  CHECK_EQUAL(failed.size(), 4u);
  for (std::size_t i = 0; i < failed.size(); ++i) {
    CHECK_EQUAL(failed[i].event.receives, i >= 2);
    CHECK_EQUAL(failed[i].event.message, i % 2);
    CHECK_EQUAL(failed[i].event.status, Status::peer_dead);
  }
  CHECK_EQUAL(seen.of(Kind::peer_dead).size(), 1u);
}

TEST(trace__a_replaced_policy_is_seen) {
  Pair pair{weft::test::shipped_config()};
  Seen seen;
  Trace& trace = pair.stack[0].trace();
  CHECK(trace.subscribe(&seen, traced(Kind::policy_replaced)));
  for (const auto family : {weft::policy::Family::window, weft::policy::Family::path}) {
    CHECK(pair.stack[0].policies().set_default(pair.now_ns + kMs, family, {}, false));
    CHECK_EQUAL(seen.entries.size(), 1u);
    CHECK_EQUAL(seen.entries[0].event.value, static_cast<u64>(family));
    CHECK_EQUAL(seen.entries[0].event.peer, pair.peer[0]);
    CHECK_EQUAL(seen.entries[0].now_ns, pair.now_ns + kMs);
    seen.entries.clear();
  }
}

TEST(trace__a_sink_sees_only_what_it_asked_for_and_while_it_is_subscribed) {
  Pair pair{StackConfig{}};
  Seen some, all;
  Trace& trace = pair.stack[0].trace();
  CHECK(trace.subscribe(&some, traced(Kind::send_done)));
  CHECK(trace.subscribe(&all, kTraceEvents));
  CHECK(transfer(&pair, 700));
  CHECK_EQUAL(some.entries.size(), 1u);
  CHECK(all.entries.size() > 1);
  trace.unsubscribe(&all);
  const std::size_t before = all.entries.size();
  CHECK(transfer(&pair, 700));
  CHECK_EQUAL(some.entries.size(), 2u);
  CHECK_EQUAL(all.entries.size(), before);
  CHECK(!trace.wants(Kind::message_started));
}

TEST(trace__a_fifth_sink_is_refused_and_a_second_subscription_replaces_the_first) {
  Trace trace;
  Seen sinks[Trace::kSinksMax + 1];
  for (std::size_t i = 0; i < Trace::kSinksMax; ++i) CHECK(trace.subscribe(&sinks[i], traced(Kind::loss)));
  CHECK(!trace.subscribe(&sinks[Trace::kSinksMax], kTraceEvents));
  CHECK(!trace.wants(Kind::timeout));
  CHECK(trace.subscribe(&sinks[0], traced(Kind::timeout)));
  Event event{};
  event.kind = Kind::timeout;
  trace.emit(event);
  event.kind = Kind::loss;
  trace.emit(event);
  CHECK_EQUAL(sinks[0].entries.size(), 1u);
  CHECK_EQUAL(sinks[1].entries.size(), 1u);
}
