// Tests the sender's credit: how much may be sent, and when more is requested.
#include "native/core/credit_account.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr i64 kNow = 1'000'000'000, kMs = 1'000'000;

StackConfig config_of(i64 rto_ns_min, i64 rto_ns_max) {
  StackConfig config;
  config.rto_ns_min = rto_ns_min;
  config.rto_ns_max = rto_ns_max;
  return config;
}

}  // namespace

TEST(credit__without_a_limit_nothing_is_ever_spent) {
  CreditAccount credit(kNoCredit);
  credit.on_sent(u64{1} << 40);
  CHECK(!credit.in_force());
  CHECK(!credit.is_spent());
  CHECK_EQUAL(credit.burst_bytes_max(), std::numeric_limits<i64>::max());
  CHECK(!credit.on_granted(kNoCredit));
  CHECK(!credit.in_force());
}

TEST(credit__speculative_bytes_are_spent_first) {
  CreditAccount credit(1000);
  CHECK_EQUAL(credit.burst_bytes_max(), 1000);
  credit.on_sent(600);
  CHECK_EQUAL(credit.burst_bytes_max(), 400);
  CHECK(!credit.is_spent());
  credit.on_sent(400);
  CHECK(credit.is_spent());
}

TEST(credit__a_grant_counts_from_the_start_and_an_old_one_changes_nothing) {
  CreditAccount credit(0);
  CHECK(credit.is_spent());
  CHECK(credit.on_granted(5000));
  credit.on_sent(2000);
  CHECK(!credit.on_granted(4000));  // an older grant that arrives late
  CHECK_EQUAL(credit.burst_bytes_max(), 3000);
}

TEST(credit__the_first_grant_puts_the_limit_in_force) {
  CreditAccount credit(kNoCredit);
  credit.on_sent(3000);
  CHECK(credit.on_granted(2000));
  CHECK(credit.in_force());
  CHECK(credit.is_spent());
}

TEST(credit__new_bytes_are_requested_at_once_and_the_same_bytes_once) {
  CreditAccount credit(0);
  const StackConfig config = config_of(kMs, 100 * kMs);
  CHECK(credit.take_request(kNow, 1000, true, config));
  CHECK(!credit.take_request(kNow, 1000, true, config));
  CHECK(credit.take_request(kNow, 2000, true, config));
}

TEST(credit__requests_in_vain_are_repeated_ever_more_slowly_while_starved) {
  CreditAccount credit(0);
  const StackConfig config = config_of(kMs, 1000 * kMs);
  i64 now_ns = kNow, wait_ns = 0;
  CHECK(credit.take_request(now_ns, 1000, true, config));
  for (int i = 0; i < 8; ++i) {
    const i64 next_ns = credit.request_ns();
    CHECK(next_ns - now_ns >= wait_ns);
    wait_ns = next_ns - now_ns;
    CHECK(!credit.take_request(next_ns - 1, 1000, true, config));
    CHECK(!credit.take_request(next_ns, 1000, false, config));
    CHECK(credit.take_request(next_ns, 1000, true, config));
    now_ns = next_ns;
  }
  CHECK_EQUAL(wait_ns, 32 * kMs);
  CHECK(credit.on_granted(500));
  CHECK(credit.take_request(credit.request_ns(), 1000, true, config));
  CHECK_EQUAL(credit.request_ns() - now_ns - wait_ns, 2 * kMs);  // after a grant, the request interval is short again
}

TEST(credit__never_waits_longer_than_twice_the_longest_timeout) {
  CreditAccount credit(0);
  const StackConfig config = config_of(10 * kMs, 40 * kMs);
  i64 now_ns = kNow;
  for (int i = 0; i < 10; ++i) {
    CHECK(credit.take_request(now_ns, 1000, true, config));
    CHECK(credit.request_ns() - now_ns <= 2 * config.rto_ns_max);
    now_ns = credit.request_ns();
  }
}

TEST(credit__of_an_ended_flow_limits_nothing_and_requests_nothing) {
  CreditAccount credit(0);
  credit.end();
  CHECK(!credit.is_spent());
  CHECK_EQUAL(credit.request_ns(), kNever);
}
