// Tests which sessions of strangers go when there is no room for more, and what is refused.
#include <netinet/in.h>

#include <string>

#include "native/control/open_budget.h"
#include "tests/native/check.h"

using weft::control::Holding;
using weft::control::OpenBudget;
using weft::datapath::SocketAddress;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

SocketAddress address(const std::string& text) {
  SocketAddress found;
  std::string error;
  CHECK(weft::datapath::resolve(text, 1, AF_UNSPEC, &found, &error));
  return found;
}

Holding holding(std::size_t peers, std::size_t silent, std::int64_t since_ns = 0) {
  Holding made;
  made.peers = made.flows = peers;
  made.paths = 4 * peers;
  made.silent_peers = silent;
  made.silent_since_ns = silent == 0 ? -1 : since_ns;
  return made;
}

const SocketAddress kHere = address("10.0.0.1"), kThere = address("10.0.0.2");
const std::int64_t kOne = OpenBudget::bytes_of(holding(1, 1));  // a session with a peer and a flow

// Room for ten sessions of an address and twenty in all.
struct Bench {
  OpenBudget budget{{10 * kOne, 20 * kOne}};
  std::uint64_t next = 1;
  std::uint64_t open(const SocketAddress& from, bool answers, std::int64_t at_ns = 0) {
    budget.begin(next, from, at_ns);
    budget.set(next, holding(1, answers ? 0 : 1, at_ns));
    return next++;
  }
  std::uint64_t asks(const SocketAddress& from, OpenBudget::Answer answer, std::int64_t now_ns = kSecond) const {
    std::uint64_t in_the_way = 0;
    CHECK(budget.ask(0, from, kOne, now_ns, &in_the_way) == answer);
    return in_the_way;
  }
};

}  // namespace

TEST(open_budget__counts_bytes_by_address_and_in_all) {
  Bench bench;
  const std::uint64_t first = bench.open(kHere, false), second = bench.open(kHere, true);
  const std::uint64_t other = bench.open(kThere, false);
  CHECK_EQUAL(bench.budget.bytes(), 3 * kOne);
  CHECK_EQUAL(bench.budget.bytes_from(kHere), 2 * kOne);
  bench.budget.set(first, Holding{});
  CHECK_EQUAL(bench.budget.bytes_from(kHere), kOne + OpenBudget::kSessionBytes);
  for (const std::uint64_t session : {first, second, other}) bench.budget.forget(session);
  CHECK_EQUAL(bench.budget.bytes(), 0);
  CHECK_EQUAL(bench.budget.bytes_from(kHere), 0);
  CHECK(!bench.budget.holds(first));
  bench.budget.forget(first);
}

TEST(open_budget__those_that_never_answered_go_first_and_the_oldest_before_the_others) {
  Bench bench;
  for (int i = 0; i < 4; ++i) bench.open(kHere, true, i);
  const std::uint64_t old = bench.open(kHere, false, 10), young = bench.open(kHere, false, 20);
  for (int i = 0; i < 4; ++i) bench.open(kHere, true, 30 + i);
  CHECK_EQUAL(bench.asks(kHere, OpenBudget::Answer::in_the_way), old);
  bench.budget.set(old, holding(1, 0));  // it has answered
  CHECK_EQUAL(bench.asks(kHere, OpenBudget::Answer::in_the_way), young);
  bench.budget.forget(young);
  bench.asks(kHere, OpenBudget::Answer::fits);
}

TEST(open_budget__is_full_for_an_address_only_when_all_of_it_has_answered) {
  Bench bench;
  for (int i = 0; i < 10; ++i) bench.open(kHere, true);
  CHECK_EQUAL(bench.asks(kHere, OpenBudget::Answer::address_is_full), 0u);
  bench.asks(kThere, OpenBudget::Answer::fits);  // another address has room
}

TEST(open_budget__of_all_addresses_makes_the_silent_of_any_address_go) {
  Bench bench;
  for (int i = 0; i < 10; ++i) bench.open(kHere, i != 3, i);
  for (int i = 0; i < 10; ++i) bench.open(kThere, true, i);
  const SocketAddress third = address("10.0.0.3");
  CHECK_EQUAL(bench.asks(third, OpenBudget::Answer::in_the_way), 4u);
  bench.budget.set(4, holding(1, 0));
  CHECK_EQUAL(bench.asks(third, OpenBudget::Answer::full), 0u);
}

TEST(open_budget__spares_the_session_that_asks) {
  Bench bench;
  for (int i = 0; i < 10; ++i) bench.open(kHere, i != 0, i);
  std::uint64_t in_the_way = 0;
  CHECK(bench.budget.ask(1, kHere, kOne, kSecond, &in_the_way) == OpenBudget::Answer::address_is_full);
  CHECK_EQUAL(bench.budget.first_to_go(0, kSecond), 1u);
  CHECK_EQUAL(bench.budget.first_to_go(1, kSecond), 0u);
}

TEST(open_budget__a_session_that_has_answered_before_has_a_second_to_answer_again) {
  Bench bench;
  const std::uint64_t session = bench.open(kHere, true, 0);
  bench.budget.set(session, holding(2, 1, 5 * kSecond));
  CHECK_EQUAL(bench.budget.first_to_go(0, 6 * kSecond - 1), 0u);
  CHECK_EQUAL(bench.budget.first_to_go(0, 6 * kSecond), session);
  const std::uint64_t stranger = bench.open(kThere, false, 7 * kSecond);
  CHECK_EQUAL(bench.budget.first_to_go(0, 7 * kSecond), stranger);  // it has never answered at all
}

TEST(open_budget__takes_the_addresses_of_an_ipv6_network_for_one) {
  Bench bench;
  bench.open(address("2001:db8::1"), false);
  bench.open(address("2001:db8::2"), false);
  bench.open(address("fe80::1"), false);
  bench.open(address("fe80::2"), false);
  bench.open(address("::ffff:10.0.0.1"), false);
  CHECK_EQUAL(bench.budget.bytes_from(address("2001:db8::3")), 2 * kOne);
  CHECK_EQUAL(bench.budget.bytes_from(address("2001:db8:0:1::1")), 0);
  CHECK_EQUAL(bench.budget.bytes_from(address("fe80::1")), kOne);  // on one link there are many hosts
  CHECK_EQUAL(bench.budget.bytes_from(kHere), kOne);
}
