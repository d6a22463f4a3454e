// Tests the table of stripes in progress: it finds each stripe by flow, message and direction. When it is full, it
// forgets the oldest receive, or refuses a stripe if there is none.
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

TEST(message_table__forgets_the_oldest_receives_when_it_is_full) {
  MessageTable table;
  TracedStripe gone;
  const std::uint64_t most = MessageTable::kStripesMax;
  CHECK(table.add(1, 0, false) != nullptr);
  // Receives that never end: of two flows, only flow 3 gets each message.
  for (std::uint64_t i = 0; i < 3 * most; ++i) {
    CHECK(table.add(2, i, true) != nullptr);
    CHECK(table.add(3, i, true) != nullptr);
    CHECK(table.remove(3, i, true, &gone));
  }
  CHECK(table.find(1, 0, false) != nullptr);
  CHECK(table.find(2, 2 * most + 1, true) == nullptr);
  CHECK(table.find(2, 2 * most + 2, true) != nullptr);
  CHECK(table.remove(2, 3 * most - 1, true, &gone));  // the newest, and one in the middle
  CHECK(table.remove(2, 3 * most - 9, true, &gone));
  for (std::uint64_t i = 0; i < most - 1; ++i) CHECK(table.add(4, i, false) != nullptr);
  CHECK(table.add(4, most, false) == nullptr);
  CHECK(table.find(2, 3 * most - 2, true) == nullptr);
}
