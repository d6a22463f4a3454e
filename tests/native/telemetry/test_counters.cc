// Tests how counters of each kind are counted, copied and merged.
#include <limits>
#include <string>

#include "native/telemetry/counters.h"
#include "native/telemetry/page_layout.h"
#include "tests/native/check.h"

using namespace weft::telemetry;

TEST(histogram__counts_by_powers_of_two) {
  Histogram<std::int64_t> seen;
  for (const std::int64_t value : {-1, 0, 1, 2, 3, 4, 7, 8}) seen.record(value);
  CHECK_EQUAL(seen.buckets[0], 2);  // values below 1
  CHECK_EQUAL(seen.buckets[1], 1);  // values of 1
  CHECK_EQUAL(seen.buckets[2], 2);  // values from 2 to 3
  CHECK_EQUAL(seen.buckets[3], 2);  // values from 4 to 7
  CHECK_EQUAL(seen.buckets[4], 1);  // values from 8 to 15
}

TEST(histogram__the_last_bucket_takes_everything_above) {
  Histogram<std::int64_t> seen;
  seen.record((std::int64_t{1} << 38) - 1);
  seen.record(std::int64_t{1} << 38);
  seen.record(std::numeric_limits<std::int64_t>::max());
  CHECK_EQUAL(seen.buckets[kHistogramBuckets - 2], 1);
  CHECK_EQUAL(seen.buckets[kHistogramBuckets - 1], 2);
}

TEST(counters__merge_by_kind) {
  EngineCells one, two;
  one.calls += 3;
  two.calls += 4;
  one.reestablish_ns_max.raise(9);
  two.reestablish_ns_max.raise(5);
  one.batch_datagrams.record(1);
  two.batch_datagrams.record(1);
  two.batch_datagrams.record(64);
  EngineCounters total;
  merge(values(one), &total);
  merge(values(two), &total);
  CHECK_EQUAL(total.calls, 7);
  CHECK_EQUAL(total.reestablish_ns_max, 9);
  CHECK_EQUAL(total.batch_datagrams.buckets[1], 2);
  CHECK_EQUAL(total.batch_datagrams.buckets[7], 1);
}

TEST(page_schema__says_how_many_numbers_a_histogram_has) {
  const std::string schema = page_schema();
  CHECK(schema.find("engine batch_datagrams i64x40 datagrams histogram ") != std::string::npos);
  CHECK(schema.find("engine calls i64 count sum ") != std::string::npos);
}
