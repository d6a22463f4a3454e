// Tests RTT smoothing after RFC 6298, that delays of hosts are kept apart, and that timeouts keep their bounds.
#include <vector>

#include "native/core/random.h"
#include "native/core/rtt_estimator.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr i64 kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;

}  // namespace

// RFC 6298, section 2: the first sample R gives SRTT = R and RTTVAR = R / 2; later ones use 1/8 and 1/4.
TEST(rtt_estimator__smooths_as_rfc_6298_says) {
  RttEstimator rtt;
  CHECK(!rtt.measured());
  CHECK_EQUAL(rtt.smoothed_ns(), 0);
  rtt.on_sample(800 * kUs);
  CHECK_EQUAL(rtt.smoothed_ns(), 800 * kUs);
  CHECK_EQUAL(rtt.variation_ns(), 400 * kUs);
  rtt.on_sample(1'600 * kUs);
  CHECK_EQUAL(rtt.variation_ns(), 500 * kUs);  // 3/4 * 400 us + 1/4 * |1600 us - 800 us|
  CHECK_EQUAL(rtt.smoothed_ns(), 900 * kUs);   // 7/8 * 800 us + 1/8 * 1600 us
  CHECK_EQUAL(rtt.min_ns(), 800 * kUs);
}

TEST(rtt_estimator__settles_on_a_constant_round_trip) {
  RttEstimator rtt;
  for (int i = 0; i < 200; ++i) rtt.on_sample(50 * kUs);
  CHECK_EQUAL(rtt.smoothed_ns(), 50 * kUs);
  CHECK(rtt.variation_ns() < 10);
  CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, 0), rtt.smoothed_ns() + kMs);
}

// Time in which a host's thread did not run counts for the timeout, but not for the network's RTT.
TEST(rtt_estimator__the_hosts_share_is_kept_apart) {
  RttEstimator rtt;
  for (int i = 0; i < 200; ++i) rtt.on_sample(50 * kUs, 2 * kMs);
  CHECK_EQUAL(rtt.min_ns(), 50 * kUs);
  CHECK(rtt.smoothed_ns() > 2 * kMs);
  CHECK(rtt.smoothed_network_ns() < 60 * kUs);
  CHECK(rtt.smoothed_network_ns() > 40 * kUs);
}

TEST(rtt_estimator__an_estimate_serves_until_the_first_sample) {
  RttEstimator rtt;
  rtt.expect(10 * kMs);
  CHECK(!rtt.measured());
  CHECK_EQUAL(rtt.expected_ns(), 10 * kMs);
  CHECK_EQUAL(rtt.smoothed_ns(), 0);
  CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, 0), 30 * kMs);  // 10 ms + 4 * 5 ms, the assumed variation
  rtt.on_sample(2 * kMs);
  CHECK_EQUAL(rtt.smoothed_ns(), 2 * kMs);
  rtt.expect(10 * kMs);
  CHECK_EQUAL(rtt.smoothed_ns(), 2 * kMs);
}

TEST(rtt_estimator__the_timeout_doubles_up_to_its_ceiling) {
  RttEstimator rtt;
  CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, 0), 20 * kMs);  // the default timeout, as no RTT is known
  rtt.on_sample(kMs);
  const i64 base_ns = rtt.timeout_ns(kMs, kSecond, 0);
  CHECK_EQUAL(base_ns, 3 * kMs);  // SRTT + 4 * RTTVAR, and RTTVAR is SRTT / 2
  CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, 3), 8 * base_ns);
  for (const u32 backoff : {9u, 20u, 21u, 63u, 0xFFFF'FFFFu})
    CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, backoff), kSecond);
  CHECK_EQUAL(rtt.timeout_ns(kMs, kSecond, 0, 50 * kMs), 51 * kMs);
}

// Extreme samples that a peer can cause overflow no 64-bit sum and leave timeouts within their bounds.
TEST(rtt_estimator__no_sample_breaks_it) {
  Random random(1);
  RttEstimator rtt;
  for (int i = 0; i < 100'000; ++i) {
    const i64 sample = static_cast<i64>(random.next()) >> (random.next() % 64);
    const i64 host = static_cast<i64>(random.next()) >> (random.next() % 64);
    rtt.on_sample(sample, host);
    CHECK(rtt.smoothed_ns() > 0);
    CHECK(rtt.smoothed_network_ns() > 0);
    CHECK(rtt.min_ns() > 0);
    const i64 timeout_ns = rtt.timeout_ns(kMs, kSecond, static_cast<u32>(random.next() % 40));
    CHECK(timeout_ns >= kMs);
    CHECK(timeout_ns <= kSecond);
  }
}
