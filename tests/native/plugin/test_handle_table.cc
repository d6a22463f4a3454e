// Tests the numbers that NCCL holds instead of pointers: which numbers are valid, and that none is issued twice.
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "native/plugin/handle_table.h"
#include "tests/native/check.h"

using weft::nccl::HandleKind;
using weft::nccl::HandleTable;
using weft::nccl::OpaqueHandle;

namespace {

struct Thing {
  explicit Thing(int given) : value(given) { ++alive; }
  ~Thing() { --alive; }
  Thing(const Thing&) = delete;
  Thing& operator=(const Thing&) = delete;
  int value;
  static inline int alive = 0;
};

using Table = HandleTable<Thing>;

}  // namespace

TEST(handle_table__leads_to_what_was_added_until_it_is_removed) {
  const auto table = std::make_unique<Table>(HandleKind::comm);
  void* const one = table->add(std::make_unique<Thing>(1));
  void* const two = table->add(std::make_unique<Thing>(2));
  CHECK(one != nullptr && two != nullptr && one != two);
  CHECK_EQUAL(table->find(one)->value, 1);
  CHECK_EQUAL(table->find(two)->value, 2);
  CHECK_EQUAL(table->remove(one)->value, 1);
  CHECK(table->find(one) == nullptr);
  CHECK(table->remove(one) == nullptr);
  CHECK_EQUAL(table->find(two)->value, 2);
  CHECK(!table->empty());
  CHECK(table->remove(two) != nullptr);
  CHECK(table->empty());
  CHECK_EQUAL(Thing::alive, 0);
}

TEST(handle_table__foreign_numbers_lead_nowhere) {
  const auto table = std::make_unique<Table>(HandleKind::comm);
  const auto other = std::make_unique<Table>(HandleKind::listener);
  void* const one = table->add(std::make_unique<Thing>(1));
  void* const two = other->add(std::make_unique<Thing>(2));
  CHECK(table->find(nullptr) == nullptr);
  CHECK(table->find(two) == nullptr);
  CHECK(other->find(one) == nullptr);
  const auto bits = reinterpret_cast<std::uintptr_t>(one);
  for (unsigned bit = 0; bit < 64; ++bit) {
    const auto* const wrong = reinterpret_cast<const void*>(bits ^ (std::uintptr_t{1} << bit));
    CHECK(table->find(wrong) == nullptr);
  }
  static_cast<void>(table->remove(one));
  static_cast<void>(other->remove(two));
}

TEST(handle_table__a_place_is_used_again_and_its_number_is_not) {
  const auto table = std::make_unique<Table>(HandleKind::comm);
  std::set<void*> seen;
  std::set<std::uint32_t> places;
  for (int i = 0; i < 5000; ++i) {
    void* const made = table->add(std::make_unique<Thing>(i));
    CHECK(seen.insert(made).second);
    places.insert(OpaqueHandle::of(made).index);
    CHECK(table->remove(made) != nullptr);
  }
  CHECK_EQUAL(places.size(), 1U);
  for (void* const stale : seen) CHECK(table->find(stale) == nullptr);
}

TEST(handle_table__many_live_at_once_and_leave_by_what_they_are) {
  constexpr int count = 5000;  // more handles than one block of the table holds
  const auto table = std::make_unique<Table>(HandleKind::comm);
  std::vector<void*> made;
  for (int i = 0; i < count; ++i) made.push_back(table->add(std::make_unique<Thing>(i)));
  const auto odd = table->remove_if([](const Thing& thing) { return thing.value % 2 == 1; });
  CHECK_EQUAL(odd.size(), std::size_t{count / 2});
  for (int i = 0; i < count; ++i) CHECK_EQUAL(table->find(made[static_cast<std::size_t>(i)]) == nullptr, i % 2 == 1);
  CHECK_EQUAL(table->remove_if([](const Thing&) { return true; }).size(), std::size_t{count / 2});
  CHECK(table->empty());
}
