// Tests the table of stripes in progress: it finds each stripe by flow, message and direction, and refuses a stripe
// when it is full.
#include "native/engine/trace/message_table.h"
#include "tests/native/check.h"

namespace {
using weft::engine::MessageTable;
using weft::engine::TracedStripe;
}  // namespace

TEST(message_table__keeps_directions_and_flows_apart) {
  MessageTable table;
  for (const std::uint32_t flow : {0u, 1u, 70'000u}) {
    for (const bool receives : {false, true}) table.add(flow, 5, receives)->posted_ns = flow * 2 + (receives ? 1 : 0);
  }
  for (const std::uint32_t flow : {0u, 1u, 70'000u}) {
    for (const bool receives : {false, true}) {
      CHECK_EQUAL(table.find(flow, 5, receives)->posted_ns, flow * 2 + (receives ? 1 : 0));
    }
  }
  CHECK(table.find(0, 4, false) == nullptr);
  TracedStripe gone;
  CHECK(table.remove(1, 5, true, &gone));
  CHECK_EQUAL(gone.posted_ns, 3);
  CHECK(!table.remove(1, 5, true, &gone));
  CHECK(table.find(1, 5, true) == nullptr);
  CHECK(table.find(1, 5, false) != nullptr);
}

TEST(message_table__refuses_what_does_not_fit_and_reuses_what_was_removed) {
  MessageTable table;
  for (std::uint64_t i = 0; i < MessageTable::kStripesMax; ++i) CHECK(table.add(7, i * i, false) != nullptr);
  CHECK(table.add(7, ~std::uint64_t{0}, false) == nullptr);
  TracedStripe gone;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint64_t i = 0; i < MessageTable::kStripesMax; ++i) {
      CHECK(table.remove(7, (round - 1) * 1'000'000'000 + i * i, false, &gone));
      CHECK(table.add(7, round * 1'000'000'000 + i * i, false) != nullptr);
    }
  }
}
