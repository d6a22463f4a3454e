// Tests which long messages are lent: trials of the sender, measurements of the receiver, and both together.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "native/local/lending.h"
#include "tests/native/check.h"

namespace {

using weft::local::kLendBytes;
using weft::local::kSizeClasses;
using weft::local::LendingRates;
using weft::local::LendingTrials;
using weft::local::size_class;

constexpr std::uint64_t kMb = 1 << 20;

// A stream of messages of one size without pauses; each takes as long as its way does on this host.
struct Stream {
  LendingTrials trials;
  LendingRates rates;
  std::int64_t now_ns = 1'000'000'000, ring_ns = 0, lent_ns = 0;

  // How many of `count` messages are lent.
  int run(int count, std::uint64_t bytes) {
    int lends = 0;
    for (int i = 0; i < count; ++i) {
      const bool lent = trials.lends(bytes, rates.advice());
      rates.on_begin(now_ns);
      now_ns += lent ? lent_ns : ring_ns;
      static_cast<void>(rates.on_end(lent, bytes, now_ns, true));
      lends += lent ? 1 : 0;
    }
    return lends;
  }
};

}  // namespace

TEST(lending__sizes_have_classes) {
  CHECK_EQUAL(size_class(kLendBytes), 0u);
  CHECK_EQUAL(size_class(2 * kLendBytes - 1), 0u);
  CHECK_EQUAL(size_class(2 * kLendBytes), 1u);
  CHECK_EQUAL(size_class(kMb), 3u);
  CHECK_EQUAL(size_class(16 * kMb), kSizeClasses - 1);
  CHECK_EQUAL(size_class(~std::uint64_t{0}), kSizeClasses - 1);
  CHECK_EQUAL(size_class(0), 0u);
}

TEST(lending__without_advice_nearly_all_are_lent) {
  LendingTrials trials;
  int lent = 0;
  for (int i = 0; i < 10'000; ++i) lent += trials.lends(kMb, 0) ? 1 : 0;
  CHECK(lent > 9'600);
  CHECK(lent < 9'900);
}

TEST(lending__any_advice_gives_an_answer) {
  LendingTrials trials;
  std::uint32_t advice = 1;
  for (int i = 0; i < 100'000; ++i) {
    advice = advice * 1'664'525 + 1'013'904'223;
    static_cast<void>(trials.lends(kLendBytes << (advice >> 27), advice));
  }
}

TEST(lending__the_ring_is_taken_where_it_is_faster_by_far) {
  Stream stream;
  stream.ring_ns = 40'000;
  stream.lent_ns = 75'000;
  CHECK(stream.run(64, kMb) < 40);
  CHECK(stream.run(1'000, kMb) < 50);
  CHECK_EQUAL(stream.rates.advice(), 1u << size_class(kMb));
  // Other sizes are not judged by it.
  CHECK_EQUAL(stream.run(8, 4 * kMb), 8);
}

TEST(lending__two_copies_must_gain_more_than_a_little) {
  Stream stream;
  stream.ring_ns = 60'000;
  stream.lent_ns = 75'000;
  CHECK(stream.run(1'000, kMb) > 950);
  CHECK_EQUAL(stream.rates.advice(), 0u);
}

TEST(lending__another_working_set_changes_it_both_ways) {
  Stream stream;
  for (int i = 0; i < 3; ++i) {
    stream.ring_ns = 40'000;
    stream.lent_ns = 75'000;
    static_cast<void>(stream.run(300, kMb));
    CHECK(stream.rates.advice() != 0);
    stream.ring_ns = 150'000;
    static_cast<void>(stream.run(300, kMb));
    CHECK_EQUAL(stream.rates.advice(), 0u);
  }
}

TEST(lending__a_message_that_a_pause_precedes_is_not_measured) {
  Stream stream;
  stream.ring_ns = 10'000;
  stream.lent_ns = 75'000;
  for (int i = 0; i < 1'000; ++i) {
    const bool lent = stream.trials.lends(kMb, stream.rates.advice());
    stream.now_ns += 1'000'000;
    stream.rates.on_begin(stream.now_ns);
    stream.now_ns += lent ? stream.lent_ns : stream.ring_ns;
    CHECK(!stream.rates.on_end(lent, kMb, stream.now_ns, false));
  }
  CHECK_EQUAL(stream.rates.advice(), 0u);
}

TEST(lending__a_short_message_in_between_is_no_part_of_a_time) {
  Stream stream;
  stream.ring_ns = 10'000;
  stream.lent_ns = 75'000;
  for (int i = 0; i < 1'000; ++i) {
    static_cast<void>(stream.run(1, kMb));
    stream.rates.on_other();
  }
  CHECK_EQUAL(stream.rates.advice(), 0u);
}
