// Tests that the stripes of a message cover it exactly once, are page-aligned, and are the same at both ends.
#include "native/core/random.h"
#include "native/core/stripes.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

void check_partition(u64 message, u64 bytes, u32 flows) {
  u64 covered = 0;
  u32 parts = 0;
  const auto first = static_cast<u32>(message % flows);
  for (u32 turn = 0; turn < flows; ++turn) {
    const u32 flow = (first + turn) % flows;
    const Range range = stripe_of(message, bytes, flow, flows);
    if (!takes_part(message, bytes, flow, flows)) {
      CHECK_EQUAL(range.bytes(), 0u);
      continue;
    }
    ++parts;
    CHECK_EQUAL(range.begin, covered);
    CHECK(range.end >= range.begin);
    CHECK(range.begin % 4096 == 0);
    CHECK(bytes == 0 || range.bytes() != 0);  // an empty stripe would never arrive
    covered = range.end;
  }
  CHECK_EQUAL(covered, bytes);
  CHECK_EQUAL(parts, stripe_count(bytes, flows));
  CHECK(parts >= 1);
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

TEST(stripes__successive_messages_begin_at_successive_flows) {
  for (u64 message = 0; message < 12; ++message) {
    CHECK(takes_part(message, 100, static_cast<u32>(message % 4), 4));
    CHECK(!takes_part(message, 100, static_cast<u32>((message + 1) % 4), 4));
  }
}
