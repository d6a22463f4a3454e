// Policies replaced and given other parameters in the middle of a transfer: nothing lost, nothing corrupt, the new one
// decides from where the old one stood; and what a tap is told.
#include <algorithm>
#include <array>
#include <vector>

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
    CHECK_EQUAL(pair.stack[0].counters().policies_failed + pair.stack[1].counters().policies_failed, 0);
  }
  Stack& sender() { return pair.stack[0]; }
  u32 flow() const { return pair.flow[0]; }

  Pair pair;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
  int packets = 0;
};

std::string name_in_force(Transfer& transfer, Family family) {
  const auto* descriptor = transfer.sender().in_force(family, transfer.flow()).descriptor;
  return descriptor == nullptr ? "none" : descriptor->name;
}

bool set(Transfer& transfer, Family family, const char* name) {
  return transfer.sender().set_policy(transfer.pair.now_ns, family, transfer.flow(), shipped(family, name), false);
}

class Counting final : public DecisionTap {
 public:
  void on_decision(const Decision& decision) noexcept override {
    ++told[static_cast<std::size_t>(decision.family)];
    CHECK(decision.event != nullptr && decision.result != nullptr && decision.ok);
    CHECK((decision.path_count != 0) == (decision.family == Family::path));
  }
  std::array<int, 5> told{};
};

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
    if (swaps % 2 == 1) {  // swift takes the window over that it is told
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
    CHECK(transfer.pair.stack[1].set_default(transfer.pair.now_ns, Family::credit, choice, false));
    CHECK(transfer.pair.stack[1].in_force(Family::credit, transfer.pair.flow[1]).descriptor == choice.descriptor);
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
  const i64 wanted_bytes = 100'000;  // fixed has one parameter, its window
  const PolicyChoice wider{config.window.descriptor, &wanted_bytes};
  CHECK(transfer.sender().set_default(transfer.pair.now_ns, Family::window, wider, true));
  transfer.until(kBytes / 2);
  CHECK_EQUAL(transfer.sender().flow(transfer.flow())->tx.window().window_bytes(), wanted_bytes);
  std::vector<PolicyChoice> used;
  transfer.sender().policies_in_use(&used);
  CHECK(std::any_of(used.begin(), used.end(), [&](PolicyChoice c) { return c.params == &wanted_bytes; }));
  CHECK(std::none_of(used.begin(), used.end(), [&](PolicyChoice c) { return c.params == &first_bytes; }));
  transfer.finish();
}

TEST(policy_swap__a_flow_may_have_policies_of_its_own) {
  Shared shared{StackConfig{}};
  FlowConfig own;
  own.window = shipped(Family::window, "swift");
  own.remote_token = 7;
  PathSet paths(&shared, shipped(Family::path, "oblivious"), 0, 4, 1 << 20);
  CHECK_EQUAL(std::string(paths.policy().descriptor().name), "oblivious");
  FlowSender sender(&shared, 0, own, PeerConfig{}, &paths);
  CHECK_EQUAL(std::string(sender.window().choice().descriptor->name), "swift");
  CHECK_EQUAL(std::string(sender.loss().choice().descriptor->name), "fixed");
}

TEST(policy_swap__a_tap_is_told_of_every_family) {
  StackConfig config = weft::test::shipped_config();
  config.credit = shipped(Family::credit, "grant");
  Transfer transfer(config);
  Counting tap[2];
  for (int end = 0; end < 2; ++end) transfer.pair.stack[end].shared().tap = &tap[end];
  transfer.finish();
  CHECK(tap[0].told[static_cast<std::size_t>(Family::window)] > 10);
  CHECK(tap[0].told[static_cast<std::size_t>(Family::path)] > 10);
  CHECK(tap[0].told[static_cast<std::size_t>(Family::loss)] > 10);
  CHECK(tap[1].told[static_cast<std::size_t>(Family::credit)] > 10);
}
