// Tests that bursts are spaced by the rate, and that idle time allows at most one burst without waiting.
#include "native/core/pacer.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr double kRate = 1e9;  // one byte per nanosecond
constexpr i64 kStart = 1'000'000'000;

}  // namespace

TEST(pacer__without_a_rate_nothing_waits) {
  Pacer pacer;
  pacer.on_sent(kStart, 1 << 20);
  CHECK(pacer.may_send(kStart));
  CHECK_EQUAL(pacer.burst_bytes_max(), std::numeric_limits<i64>::max());
}

TEST(pacer__the_next_burst_waits_for_the_last_ones_bytes) {
  Pacer pacer;
  pacer.set_rate(kRate);
  pacer.on_sent(kStart, 100'000);  // the first burst need not wait
  const i64 next_ns = kStart + 100'000 - Pacer::kBurstNs;
  CHECK_EQUAL(pacer.next_ns(), next_ns);
  CHECK(!pacer.may_send(next_ns - 1));
  CHECK(pacer.may_send(next_ns));
  pacer.on_sent(next_ns, 100'000);
  CHECK(!pacer.may_send(next_ns + 99'999));
  CHECK(pacer.may_send(next_ns + 100'000));
}

TEST(pacer__carries_exactly_its_rate_however_late_the_timer_is) {
  for (const i64 late_ns : {i64{0}, i64{7'000}, Pacer::kBurstNs}) {
    Pacer pacer;
    pacer.set_rate(kRate);
    i64 now_ns = kStart, bytes = 0;
    while (now_ns < kStart + 100'000'000) {
      pacer.on_sent(now_ns, 20'000);
      bytes += 20'000;
      now_ns = std::max(now_ns, pacer.next_ns() + (pacer.may_send(now_ns) ? 0 : late_ns));
    }
    // Allowed deviation: one burst sent at once at the start, and one burst under way at the end.
    const i64 lag_bytes = late_ns == 0 ? 0 : 20'000 + late_ns;
    CHECK(bytes <= 100'000'000 + Pacer::kBurstNs + 20'000);
    CHECK(bytes >= 100'000'000 - lag_bytes);
  }
}

TEST(pacer__a_pause_earns_one_burst_and_no_more) {
  Pacer pacer;
  pacer.set_rate(kRate);
  pacer.on_sent(kStart, 10'000);
  const i64 later_ns = kStart + 1'000'000'000;
  i64 burst = 0;
  while (pacer.may_send(later_ns)) {
    pacer.on_sent(later_ns, 10'000);
    burst += 10'000;
  }
  CHECK_EQUAL(burst, Pacer::kBurstNs + 10'000);
}

TEST(pacer__a_burst_lasts_50_us_at_the_rate) {
  Pacer pacer;
  pacer.set_rate(kRate);
  CHECK_EQUAL(pacer.burst_bytes_max(), 50'000);
  pacer.set_rate(1e6);
  CHECK_EQUAL(pacer.burst_bytes_max(), 50);
}

// Even if a policy sets a rate at which one burst takes hours, the wait is a second at most.
TEST(pacer__a_tiny_rate_waits_a_second_at_most) {
  Pacer pacer;
  pacer.set_rate(1e-3);
  pacer.on_sent(kStart, 1 << 20);
  CHECK(pacer.next_ns() <= kStart + 1'000'000'000);
}

TEST(pacer__a_rate_that_is_lifted_frees_the_flow_at_once) {
  Pacer pacer;
  pacer.set_rate(1e3);
  pacer.on_sent(kStart, 1 << 20);
  CHECK(!pacer.may_send(kStart + 1'000));
  pacer.set_rate(0);
  CHECK(pacer.may_send(kStart + 1'000));
}

TEST(pacer__a_changed_rate_changes_the_gap_that_has_begun) {
  Pacer pacer;
  pacer.set_rate(kRate);
  pacer.on_sent(kStart, 100'000);
  const i64 from_ns = kStart - Pacer::kBurstNs;
  pacer.set_rate(2 * kRate);
  CHECK_EQUAL(pacer.next_ns(), from_ns + 100'000);
  constexpr i64 kAll = 1 << 20;
  pacer.change_rate(2 * kRate, kAll);
  CHECK_EQUAL(pacer.next_ns(), from_ns + 50'000);
  pacer.change_rate(kRate / 4, kAll);
  CHECK_EQUAL(pacer.next_ns(), from_ns + 400'000);
  pacer.change_rate(kRate / 4, 1'000);  // the window allows single segments of 1,000 bytes now
  CHECK_EQUAL(pacer.next_ns(), from_ns + 4'000);
  pacer.change_rate(0, kAll);
  CHECK(pacer.may_send(from_ns));
}
