// Tests that the stripes of a message cover it exactly once, are page-aligned, and are the same at both ends.
#include "native/core/random.h"
#include "native/core/stripes.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

void check_partition(u64 message, u64 bytes, u32 flows) {
  u64 covered = 0;
  u32 stripes = 0, parts = 0;
  const u32 first = flow_of_stage(message, bytes, 0, flows);
  for (u32 turn = 0; turn < flows; ++turn) {
    const u32 flow = (first + turn) % flows;
    const Range range = stripe_of(message, bytes, flow, flows);
    if (takes_part(message, bytes, flow, flows)) {
      ++parts;
      const u32 stage = stage_of(message, bytes, flow, flows);
      CHECK(stage < stage_count(bytes, flows));
      CHECK_EQUAL(flow_of_stage(message, bytes, stage, flows), flow);
    }
    if (!has_stripe(message, bytes, flow, flows)) {
      CHECK_EQUAL(range.bytes(), 0u);
      continue;
    }
    CHECK(takes_part(message, bytes, flow, flows));
    ++stripes;
    CHECK_EQUAL(range.begin, covered);
    CHECK(range.end >= range.begin);
    CHECK(range.begin % 4096 == 0);
    CHECK(bytes == 0 || range.bytes() != 0);
    covered = range.end;
  }
  CHECK_EQUAL(covered, bytes);
  CHECK_EQUAL(stripes, stripe_count(bytes, flows));
  CHECK_EQUAL(parts, part_count(message, bytes, flows));
  CHECK(takes_part(message, bytes, kHomeFlow, flows));
  CHECK(stripes >= 1);
}

}  // namespace

TEST(stripes__partition_is_exact) {
  for (const u32 flows : {1u, 2u, 3u, 4u, 7u, 16u, 255u}) {
    for (u64 message = 0; message < 2 * flows; ++message) {
      for (const u64 bytes : {u64{0}, u64{1}, kStripeBytesMin - 1, kStripeBytesMin, 2 * kStripeBytesMin - 1,
                              2 * kStripeBytesMin, 2 * kStripeBytesMin + 1, 5 * kStripeBytesMin + 4097,
                              u64{flows} * kStripeBytesMin, u64{flows} * kStripeBytesMin + 1, kMessageBytesMax}) {
        check_partition(message, bytes, flows);
      }
    }
  }
}

TEST(stripes__partition_is_exact_for_random_sizes) {
  Random random(11);
  for (int i = 0; i < 200'000; ++i) {
    const u64 bytes = random.next() >> (24 + random.next() % 40);
    check_partition(random.next(), bytes, static_cast<u32>(1 + random.next() % 32));
  }
}

TEST(stripes__short_messages_use_the_home_flow_only) {
  for (u64 message = 0; message < 12; ++message) {
    for (const u64 bytes : {u64{0}, u64{1}, kHomeBytesMax}) {
      CHECK_EQUAL(part_count(message, bytes, 4), 1u);
      CHECK_EQUAL(stripe_of(message, bytes, kHomeFlow, 4).bytes(), bytes);
    }
  }
}

TEST(stripes__successive_long_messages_begin_at_successive_flows) {
  for (u64 message = 0; message < 12; ++message) {
    CHECK(has_stripe(message, kHomeBytesMax + 1, static_cast<u32>(message % 4), 4));
    CHECK(!has_stripe(message, kHomeBytesMax + 1, static_cast<u32>((message + 1) % 4), 4));
  }
}

TEST(stripes__a_receive_is_posted_on_all_flows_that_a_shorter_message_uses) {
  Random random(12);
  for (int i = 0; i < 200'000; ++i) {
    const u64 capacity = random.next() % (3 * 1024 * 1024), bytes = random.next() % (capacity + 1);
    const u64 message = random.next();
    const u32 flows = static_cast<u32>(1 + random.next() % 16);
    for (u32 flow = 0; flow < flows; ++flow) {
      CHECK(!takes_part(message, bytes, flow, flows) || takes_part(message, capacity, flow, flows));
    }
  }
}
