// Tests the samples of a flow's delivery rate.
#include "native/core/delivery_rate.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

constexpr i64 kRttNs = 100'000, kSegmentBytes = 1'000, kGapNs = 1'000;

// A flow that sends a segment each `gap_ns` and gets its acknowledgment a round trip later.
struct Steady {
  DeliveryRate rate;
  i64 now_ns = 1'000'000, delivered_bytes = 0;

  void restart() { rate.on_restart(now_ns, delivered_bytes); }
  DeliverySample run(int segments, i64 gap_ns) {
    DeliverySample last;
    for (int i = 0; i < segments; ++i) {
      now_ns += gap_ns;
      delivered_bytes += kSegmentBytes;
      last = rate.on_ack(now_ns, now_ns - kRttNs, delivered_bytes, kRttNs, kRttNs);
    }
    return last;
  }
};

}  // namespace

TEST(delivery_rate__is_that_of_a_steady_flow) {
  Steady flow;
  flow.restart();
  CHECK_EQUAL(flow.run(1, kRttNs + kGapNs).app_limited, false);
  const DeliverySample sample = flow.run(1'000, kGapNs);
  CHECK(sample.bytes_per_s > 0.99e9 && sample.bytes_per_s < 1.01e9);
  CHECK(!sample.app_limited);
}

TEST(delivery_rate__follows_a_rate_that_falls_within_two_round_trips) {
  Steady flow;
  flow.restart();
  flow.run(1'000, kGapNs);
  const DeliverySample sample = flow.run(static_cast<int>(2 * kRttNs / (4 * kGapNs)), 4 * kGapNs);
  CHECK(sample.bytes_per_s > 0.24e9 && sample.bytes_per_s < 0.26e9);
}

TEST(delivery_rate__acknowledgments_that_arrive_together_are_no_higher_rate) {
  Steady flow;
  flow.restart();
  flow.run(500, kGapNs);
  const i64 sent_ns = flow.now_ns;
  flow.now_ns += kRttNs + 20 * kGapNs;  // twenty were held back
  flow.delivered_bytes += 120 * kSegmentBytes;
  const DeliverySample sample =
      flow.rate.on_ack(flow.now_ns, sent_ns + 19 * kGapNs, flow.delivered_bytes, kRttNs, kRttNs);
  CHECK(sample.bytes_per_s > 0.9e9 && sample.bytes_per_s < 1.05e9);
}

TEST(delivery_rate__samples_after_idle_time_are_limited_by_the_application_until_that_is_delivered) {
  Steady flow;
  flow.restart();
  flow.run(500, kGapNs);
  flow.rate.on_idle(flow.delivered_bytes, 100 * kSegmentBytes);
  CHECK(flow.run(150, kGapNs).app_limited);
  CHECK(!flow.run(300, kGapNs).app_limited);
}

TEST(delivery_rate__there_is_no_sample_of_a_segment_older_than_all_checkpoints) {
  Steady flow;
  CHECK_EQUAL(flow.rate.on_ack(flow.now_ns, flow.now_ns - kRttNs, 1'000, kRttNs, kRttNs).bytes_per_s, 0.0);
  flow.restart();
  flow.run(1'000, kGapNs);
  CHECK_EQUAL(flow.rate.on_ack(flow.now_ns, 1'000, flow.delivered_bytes, kRttNs, kRttNs).bytes_per_s, 0.0);
}

TEST(delivery_rate__an_interval_shorter_than_the_least_round_trip_gives_no_sample) {
  DeliveryRate rate;
  rate.on_restart(1'000'000, 0);
  CHECK_EQUAL(rate.on_ack(1'000'500, 1'000'100, 1'000, kRttNs, kRttNs).bytes_per_s, 0.0);
}
