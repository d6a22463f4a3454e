// Tests that the time of an API call is right before, at and after the times at which the bits in its handle wrap.
#include "native/plugin/profiler/call_time.h"
#include "tests/native/check.h"

using namespace weft::nccl;

namespace {

constexpr std::int64_t kWrapNs = std::int64_t{1} << kCallTimeBits;
constexpr std::int64_t kDayNs = 86'400'000'000'000;

}  // namespace

TEST(call_time__survives_the_wrap) {
  for (const std::int64_t wrap : {std::int64_t{0}, kWrapNs, 2 * kWrapNs, 100 * kWrapNs}) {
    for (const std::int64_t called : {wrap - 1'000, wrap - 1, wrap, wrap + 1, wrap + 12'345}) {
      if (called < 0) continue;
      for (const std::int64_t later : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5'000}, 400 * kDayNs}) {
        for (const bool captured : {false, true}) {
          const std::uint64_t packed = packed_call(called, captured);
          CHECK_EQUAL(call_time(packed, called + later), called);
          CHECK_EQUAL(is_captured_call(packed), captured);
        }
      }
    }
  }
}

TEST(call_time__leaves_the_bits_of_the_kind_free) {
  CHECK_EQUAL(packed_call(kWrapNs - 1, true) >> 56, 0u);
  CHECK_EQUAL(packed_call(-1, true) >> 56, 0u);
}
