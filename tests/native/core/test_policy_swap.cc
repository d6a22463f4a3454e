// Tests that replacing policies or parameters during a transfer loses and corrupts no data, and that the new policy
// continues from the current state. Also tests what an observer of the policies' decisions sees.
#include <algorithm>
#include <array>
#include <vector>

#include "native/core/credit_control.h"
#include "native/policy/loader.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::policy::Family;
using weft::test::Pair;
using weft::test::shipped;
using weft::test::Wired;

namespace {

constexpr u64 kBytes = 4 << 20;

struct Transfer {
  explicit Transfer(const StackConfig& config) : pair(config), sent(weft::test::pattern(kBytes, 5)), buffer(kBytes) {
    CHECK(pair.opened);
    CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
  }
  void until(u64 bytes) {
    CHECK(pair.run([&] { return pair.received_bytes(1) >= bytes; }, [&](const Wired&) { return ++packets % 50 == 0; }));
  }
  void finish() {
    until(kBytes);
    CHECK(buffer == sent);
    CHECK_EQUAL(pair.stack[0].counters().events_policy_failed + pair.stack[1].counters().events_policy_failed, 0);
  }
  Stack& sender() { return pair.stack[0]; }
  u32 flow() const { return pair.flow[0]; }

  Pair pair;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
  int packets = 0;
};

std::string name_in_force(Transfer& transfer, Family family) {
  const auto* descriptor = transfer.sender().policies().in_force(family, transfer.flow()).descriptor;
  return descriptor == nullptr ? "none" : descriptor->name;
}

bool set(Transfer& transfer, Family family, const char* name) {
  return transfer.sender().policies().set(transfer.pair.now_ns, family, transfer.flow(), shipped(family, name), false);
}

class Counting final : public TraceSink {
 public:
  void on_decision(const Decision& decision) noexcept override {
    ++told[static_cast<std::size_t>(decision.family)];
    CHECK(decision.event != nullptr && decision.result != nullptr && decision.ok);
    CHECK((decision.paths != nullptr) == (decision.family == Family::path));
    const bool of_paths = decision.family == Family::path || decision.family == Family::loss;
    CHECK_EQUAL(decision.path_count, of_paths ? 4u : 0u);
  }
  std::array<int, 5> told{};
};

// Collects the events that were passed to on_start of policies.
class Starts final : public TraceSink {
 public:
  void on_decision(const Decision& decision) noexcept override {
    if (decision.hook != weft::policy::hook::start) return;
    if (decision.family == Family::window) windows.push_back(as<weft::policy::WindowEvent>(decision));
    if (decision.family == Family::path) paths.push_back(as<weft::policy::PathEvent>(decision));
    if (decision.family == Family::loss) losses.push_back(as<weft::policy::LossEvent>(decision));
    if (decision.family == Family::credit) credits.push_back(as<weft::policy::CreditEvent>(decision));
  }
  std::vector<weft::policy::WindowEvent> windows;
  std::vector<weft::policy::PathEvent> paths;
  std::vector<weft::policy::LossEvent> losses;
  std::vector<weft::policy::CreditEvent> credits;

 private:
  template <typename Event>
  static Event as(const Decision& decision) {
    return *static_cast<const Event*>(decision.event);
  }
};

std::int32_t good(void*, void*, std::int64_t, const void*, const void*, void*) { return 0; }
std::int32_t bad(void*, void*, std::int64_t, const void*, const void*, void*) { return 1; }

}  // namespace

TEST(policy_swap__every_family_changes_in_mid_transfer) {
  Transfer transfer(weft::test::shipped_config());
  const char* windows[] = {"fixed", "swift"};
  const char* paths[] = {"oblivious", "fixed", "power_of_two"};
  const char* losses[] = {"fixed", "rack"};
  int swaps = 0;
  for (u64 bytes = kBytes / 32; bytes < kBytes; bytes += kBytes / 32, ++swaps) {
    transfer.until(bytes);
    const i64 window_before = transfer.sender().flow(transfer.flow())->tx.window().window_bytes();
    CHECK(set(transfer, Family::window, windows[swaps % 2]));
    CHECK(set(transfer, Family::path, paths[swaps % 3]));
    CHECK(set(transfer, Family::loss, losses[swaps % 2]));
    CHECK_EQUAL(name_in_force(transfer, Family::window), windows[swaps % 2]);
    CHECK_EQUAL(name_in_force(transfer, Family::path), paths[swaps % 3]);
    CHECK_EQUAL(name_in_force(transfer, Family::loss), losses[swaps % 2]);
    if (swaps % 2 == 1) {  // swift starts with the window of the replaced policy
      CHECK_EQUAL(transfer.sender().flow(transfer.flow())->tx.window().window_bytes(), window_before);
    }
  }
  transfer.finish();
}

TEST(policy_swap__credit_comes_changes_and_goes) {
  Transfer transfer(weft::test::shipped_config());
  const PolicyChoice choices[] = {
      shipped(Family::credit, "grant"), {}, shipped(Family::credit, "fixed"), shipped(Family::credit, "grant")};
  int swaps = 0;
  for (u64 bytes = kBytes / 16; bytes < kBytes; bytes += kBytes / 16, ++swaps) {
    transfer.until(bytes);
    const PolicyChoice choice = choices[swaps % 4];
    CHECK(transfer.pair.stack[1].policies().set_default(transfer.pair.now_ns, Family::credit, choice, false));
    CHECK(transfer.pair.stack[1].policies().in_force(Family::credit, transfer.pair.flow[1]).descriptor ==
          choice.descriptor);
  }
  transfer.finish();
}

TEST(policy_swap__parameters_change_and_state_stays) {
  StackConfig config = weft::test::shipped_config();
  const i64 first_bytes = 50'000;
  config.window = shipped(Family::window, "fixed");
  config.window.params = &first_bytes;
  Transfer transfer(config);
  transfer.until(kBytes / 4);
  const i64 wanted_bytes = 100'000;  // the only parameter of fixed is its window
  const PolicyChoice wider{config.window.descriptor, &wanted_bytes};
  CHECK(transfer.sender().policies().set_default(transfer.pair.now_ns, Family::window, wider, true));
  transfer.until(kBytes / 2);
  CHECK_EQUAL(transfer.sender().flow(transfer.flow())->tx.window().window_bytes(), wanted_bytes);
  std::vector<PolicyChoice> used;
  transfer.sender().policies().list_in_use(&used);
  CHECK(std::any_of(used.begin(), used.end(), [&](PolicyChoice c) { return c.params == &wanted_bytes; }));
  CHECK(std::none_of(used.begin(), used.end(), [&](PolicyChoice c) { return c.params == &first_bytes; }));
  transfer.finish();
}

TEST(policy_swap__a_flow_may_have_policies_of_its_own) {
  Shared shared{StackConfig{}};
  FlowConfig own;
  own.window = shipped(Family::window, "swift");
  own.remote_token = 7;
  PathSet paths(&shared, shipped(Family::path, "oblivious"), 0, 4, 1 << 20, 1400);
  CHECK_EQUAL(std::string(paths.policy().choice().descriptor->name), "oblivious");
  FlowSender sender(&shared, 0, own, PeerConfig{}, &paths);
  CHECK_EQUAL(std::string(sender.window().choice().descriptor->name), "swift");
  CHECK_EQUAL(std::string(sender.loss().choice().descriptor->name), "fixed");
}

TEST(policy_swap__a_tap_is_told_of_every_family) {
  StackConfig config = weft::test::shipped_config();
  config.credit = shipped(Family::credit, "grant");
  Transfer transfer(config);
  Counting tap[2];
  for (int end = 0; end < 2; ++end) CHECK(transfer.pair.stack[end].trace().subscribe(&tap[end], kTraceDecisions));
  transfer.finish();
  CHECK(tap[0].told[static_cast<std::size_t>(Family::window)] > 10);
  CHECK(tap[0].told[static_cast<std::size_t>(Family::path)] > 10);
  CHECK(tap[0].told[static_cast<std::size_t>(Family::loss)] > 10);
  CHECK(tap[1].told[static_cast<std::size_t>(Family::credit)] > 10);
}

TEST(policy_swap__a_window_policy_is_told_where_the_flow_stands) {
  StackConfig config = weft::test::shipped_config();
  const i64 window_bytes = 100'000;
  config.window = shipped(Family::window, "fixed");
  config.window.params = &window_bytes;
  Transfer transfer(config);
  Starts tap;
  CHECK(transfer.sender().trace().subscribe(&tap, kTraceDecisions));
  transfer.until(kBytes / 4 * 3);
  FlowSender& tx = transfer.sender().flow(transfer.flow())->tx;
  CHECK(set(transfer, Family::window, "bbr"));
  CHECK_EQUAL(tap.windows.size(), 1u);
  const weft::policy::WindowEvent& told = tap.windows[0];
  CHECK(told.delivered_bytes > 0);
  CHECK_EQUAL(told.delivered_bytes, tx.counters().bytes_sent);
  CHECK_EQUAL(told.inflight_bytes, tx.inflight_bytes());
  CHECK(told.rtt_min_ns > 0 && told.srtt_ns >= told.rtt_min_ns);
  const PathSet& paths = transfer.sender().flow(transfer.flow())->peer->paths();
  for (std::size_t i = 0; i < paths.count(); ++i) {
    const RttEstimator& rtt = paths.path(i).rtt;
    CHECK(!rtt.measured() || rtt.smoothed_ns() >= told.srtt_ns);
  }
  CHECK_EQUAL(told.rtt_ns, told.srtt_ns);
  CHECK(told.rand > 0 && told.rand < 1);
  CHECK_EQUAL(told.acked_bytes + told.lost_bytes, 0);
  transfer.finish();
}

TEST(policy_swap__fixed_is_told_where_the_flow_stands_when_it_takes_over) {
  weft::policy::Descriptor failing = weft::policy::fixed(Family::window);
  for (auto& hook : failing.hooks) hook = bad;
  failing.hooks[weft::policy::hook::start] = good;
  StackConfig config;
  config.window = {&failing, nullptr};
  Shared shared(config);
  Starts tap;
  CHECK(shared.trace.subscribe(&tap, kTraceDecisions));
  WindowControl window(&shared, config.window, 0, 1472);
  CHECK(window.open(1));
  RttEstimator rtt;
  rtt.on_sample(50'000);
  WindowFacts facts;
  facts.now_ns = 7;
  facts.rtt = &rtt;
  facts.acked_bytes = 3000;
  facts.delivered_bytes = 1 << 20;
  facts.inflight_bytes = 4096;
  window.on_ack(facts);
  CHECK_EQUAL(tap.windows.size(), 2u);
  for (const weft::policy::WindowEvent& told : tap.windows) {
    CHECK_EQUAL(told.delivered_bytes, 1 << 20);
    CHECK_EQUAL(told.inflight_bytes, 4096);
    CHECK_EQUAL(told.srtt_ns, 50'000);
    CHECK_EQUAL(told.acked_bytes, 0);
  }
  CHECK(tap.windows[0].rand != tap.windows[1].rand);
}

TEST(policy_swap__other_families_are_told_where_things_stand) {
  Transfer transfer(weft::test::shipped_config());
  Starts tap;
  transfer.until(kBytes / 2);
  for (Stack& stack : transfer.pair.stack) CHECK(stack.trace().subscribe(&tap, kTraceDecisions));
  CHECK(set(transfer, Family::path, "oblivious"));
  CHECK(set(transfer, Family::loss, "fixed"));
  CHECK(transfer.pair.stack[1].policies().set_default(transfer.pair.now_ns, Family::credit,
                                                      shipped(Family::credit, "grant"), false));
  transfer.finish();
  CHECK_EQUAL(tap.paths.at(0).n_paths, 4);
  CHECK_EQUAL(tap.paths.at(0).segment_bytes, 1408);
  CHECK(tap.losses.at(0).srtt_ns > 0 && tap.losses.at(0).cumulative_seq > 0);
  CHECK(tap.credits.at(0).received_bytes > 0 && tap.credits.at(0).granted_bytes >= tap.credits.at(0).received_bytes);
}

// When a policy fails, `fixed` is started by on_start before its first event, like any policy.
TEST(policy_swap__fixed_credit_starts_before_it_decides) {
  weft::policy::Descriptor failing = weft::policy::fixed(Family::credit);
  for (auto& hook : failing.hooks) hook = bad;
  failing.hooks[weft::policy::hook::start] = good;
  StackConfig config;
  Shared shared(config);
  Starts tap;
  CHECK(shared.trace.subscribe(&tap, kTraceDecisions));
  CreditPort port;
  port.record.resize(64);
  CreditControl credit(&shared, &port, {&failing, nullptr}, 0, 1472);
  CHECK(credit.open());
  CHECK(credit.on_demand(1, 1 << 20, 0));
  CHECK_EQUAL(tap.credits.size(), 2u);
}
