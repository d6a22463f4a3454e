// The timer heap against a sorted multimap, ties by id.
#include <map>
#include <utility>

#include "native/core/random.h"
#include "native/core/timer_heap.h"
#include "tests/native/check.h"

using namespace weft::core;

TEST(timer_heap__pops_in_order_of_time_and_id) {
  Random random(1);
  TimerHeap heap;
  std::multimap<std::pair<i64, u32>, int> model;
  CHECK_EQUAL(heap.next_ns(), kNever);
  for (int step = 0; step < 100'000; ++step) {
    if (random.next() % 2 == 0) {
      const auto at_ns = static_cast<i64>(random.next() % 1000);
      const auto id = static_cast<u32>(random.next() % 5);
      heap.push(at_ns, id);
      model.insert({{at_ns, id}, 0});
    } else {
      const auto now_ns = static_cast<i64>(random.next() % 1000);
      TimerHeap::Entry entry{};
      const bool due = !model.empty() && model.begin()->first.first <= now_ns;
      CHECK_EQUAL(heap.pop_due(now_ns, &entry), due);
      if (due) {
        CHECK_EQUAL(entry.at_ns, model.begin()->first.first);
        CHECK_EQUAL(entry.id, model.begin()->first.second);
        model.erase(model.begin());
      }
    }
    CHECK_EQUAL(heap.next_ns(), model.empty() ? kNever : model.begin()->first.first);
  }
}
