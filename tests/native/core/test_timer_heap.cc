// Compares the timer heap with a sorted set: it keeps one deadline per id and returns deadlines in order.
#include <map>
#include <set>
#include <utility>

#include "native/core/random.h"
#include "native/core/timer_heap.h"
#include "tests/native/check.h"

using namespace weft::core;

TEST(timer_heap__pops_in_order_of_time_and_id) {
  Random random(1);
  TimerHeap heap;
  heap.reserve_ids(20, 20);
  heap.reserve_entries(40);
  std::set<std::pair<i64, u32>> order;
  std::map<u32, i64> deadlines;
  CHECK_EQUAL(heap.next_ns(), kNever);
  for (int step = 0; step < 100'000; ++step) {
    const auto kind = random.next() % 4;
    if (kind < 2) {
      const auto id = static_cast<u32>(random.next() % 20) | (random.next() % 2 == 0 ? TimerHeap::kPeerBit : 0u);
      const i64 at_ns = random.next() % 5 == 0 ? kNever : static_cast<i64>(random.next() % 1000);
      heap.set(at_ns, id);
      if (deadlines.count(id) != 0) order.erase({deadlines[id], id});
      deadlines.erase(id);
      if (at_ns != kNever) {
        deadlines[id] = at_ns;
        order.insert({at_ns, id});
      }
    } else {
      const auto now_ns = static_cast<i64>(random.next() % 1000);
      TimerHeap::Entry entry{};
      const bool due = !order.empty() && order.begin()->first <= now_ns;
      CHECK_EQUAL(heap.pop_due(now_ns, &entry), due);
      if (due) {
        CHECK_EQUAL(entry.at_ns, order.begin()->first);
        CHECK_EQUAL(entry.id, order.begin()->second);
        deadlines.erase(entry.id);
        order.erase(order.begin());
      }
    }
    CHECK_EQUAL(heap.next_ns(), order.empty() ? kNever : order.begin()->first);
  }
}
