// Tests the table that assigns indices to objects: indices are reserved, opened, released and reused.
#include <set>

#include "native/core/slot_table.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::Status;

TEST(slot_table__an_index_is_reserved_before_its_object_exists) {
  SlotTable<int> table;
  u32 index = 99;
  CHECK_EQUAL(table.reserve(&index), Status::ok);
  CHECK_EQUAL(index, 0u);
  CHECK(table.is_reserved(index));
  CHECK(table.awaits(index));
  CHECK(table.get(index) == nullptr);
  table.put(index, std::make_unique<int>(7));
  CHECK(!table.awaits(index));
  CHECK_EQUAL(*table.get(index), 7);
}

TEST(slot_table__other_indices_are_nothing) {
  SlotTable<int> table;
  CHECK(!table.is_reserved(0));
  CHECK(!table.awaits(0));
  CHECK(table.get(~u32{0}) == nullptr);
}

TEST(slot_table__released_indices_are_reused_and_the_table_does_not_grow) {
  SlotTable<int> table;
  u32 index = 0;
  for (int i = 0; i < 100; ++i) {
    CHECK_EQUAL(table.reserve(&index), Status::ok);
    table.put(index, std::make_unique<int>(i));
  }
  for (u32 i = 0; i < 100; i += 2) table.release(i);
  std::set<u32> reused;
  for (int i = 0; i < 50; ++i) {
    CHECK_EQUAL(table.reserve(&index), Status::ok);
    CHECK(table.awaits(index));  // no trace of the previous object
    reused.insert(index);
  }
  CHECK_EQUAL(reused.size(), std::size_t{50});
  CHECK_EQUAL(*reused.rbegin(), 98u);
  CHECK_EQUAL(table.size(), 100u);
}

TEST(slot_table__an_object_can_go_before_its_index_does) {
  SlotTable<int> table;
  u32 index = 0;
  CHECK_EQUAL(table.reserve(&index), Status::ok);
  table.put(index, std::make_unique<int>(7));
  table.destroy(index);
  CHECK(table.is_reserved(index));
  table.release(index);
  CHECK(!table.is_reserved(index));
}

TEST(slot_table__has_an_upper_bound) {
  SlotTable<int> table;
  u32 index = 0;
  for (u32 i = 0; i < SlotTable<int>::kIndexMax; ++i) CHECK_EQUAL(table.reserve(&index), Status::ok);
  CHECK_EQUAL(table.reserve(&index), Status::out_of_memory);
  table.release(5);
  CHECK_EQUAL(table.reserve(&index), Status::ok);
  CHECK_EQUAL(index, 5u);
}
