// Compares the receive window with a plain set of numbers: new segments, cumulative position, and reported bitmap
// words.
#include <set>

#include "native/core/random.h"
#include "native/core/receive_window.h"
#include "tests/native/check.h"

using namespace weft::core;
using Arrival = ReceiveWindow::Arrival;

namespace {

struct Model {
  std::set<u64> beyond_edge;
  u64 cumulative = 0;
  Arrival on_arrival(u64 seq) {
    if (seq < cumulative || beyond_edge.count(seq) != 0) return Arrival::duplicate;
    if (seq >= cumulative + kWindowSegments) return Arrival::beyond;
    beyond_edge.insert(seq);
    while (beyond_edge.erase(cumulative) != 0) ++cumulative;
    return Arrival::fresh;
  }
  u64 end() const { return beyond_edge.empty() ? cumulative : *beyond_edge.rbegin() + 1; }
};

void check_words(const ReceiveWindow& window, const Model& model, u64 base) {
  u64 words[kWindowSegments / 64 + 1];
  const u16 count = window.copy_words(base, kWindowSegments / 64, words);
  CHECK_EQUAL(u64{count}, base >= model.end() || !window.has_gap() ? 0 : (model.end() - base + 63) / 64);
  for (u64 i = 0; i < 64u * count; ++i) {
    CHECK_EQUAL((words[i / 64] >> (i % 64) & 1u) != 0, model.beyond_edge.count(base + i) != 0);
  }
}

void compare(u64 seed, u64 span, int steps) {
  SlabPool pool(ReceiveWindow::kBitmapBytes, 1);
  Random random(seed);
  ReceiveWindow window(&pool);
  Model model;
  for (int i = 0; i < steps; ++i) {
    const u64 low = model.cumulative < span / 4 ? 0 : model.cumulative - span / 4;
    const u64 seq = random.next() % 3 == 0 ? model.cumulative : low + random.next() % span;
    const Arrival expected = model.on_arrival(seq);
    CHECK_EQUAL(window.classify(seq), expected);
    CHECK_EQUAL(window.on_arrival(seq), expected);
    CHECK_EQUAL(window.cumulative_seq(), model.cumulative);
    CHECK_EQUAL(window.highest_end(), model.end());
    CHECK_EQUAL(pool.blocks_in_use(), window.has_gap() ? 1u : 0u);
    if (i % 97 == 0) check_words(window, model, model.cumulative + random.next() % (span + 1));
  }
}

}  // namespace

TEST(receive_window__matches_a_set_of_numbers) {
  compare(1, 40, 20'000);
  compare(2, 700, 20'000);
  compare(3, 20'000, 30'000);
}

TEST(receive_window__in_order_takes_no_bitmap) {
  SlabPool pool(ReceiveWindow::kBitmapBytes, 0);
  ReceiveWindow window(&pool);
  for (u64 seq = 0; seq < 100'000; ++seq) CHECK_EQUAL(window.on_arrival(seq), Arrival::fresh);
  CHECK_EQUAL(window.cumulative_seq(), 100'000u);
  // Without memory for a bitmap, the segment is not recorded.
  CHECK_EQUAL(window.on_arrival(100'001), Arrival::beyond);
  CHECK_EQUAL(window.cumulative_seq(), 100'000u);
  CHECK(!window.has_gap());
}

TEST(receive_window__the_last_number_of_the_window_is_in_and_the_next_is_not) {
  SlabPool pool(ReceiveWindow::kBitmapBytes, 1);
  ReceiveWindow window(&pool);
  CHECK_EQUAL(window.on_arrival(kWindowSegments), Arrival::beyond);
  CHECK_EQUAL(window.on_arrival(~u64{0}), Arrival::beyond);
  CHECK_EQUAL(window.on_arrival(kWindowSegments - 1), Arrival::fresh);
  for (u64 seq = 1; seq < kWindowSegments - 1; ++seq) CHECK_EQUAL(window.on_arrival(seq), Arrival::fresh);
  CHECK_EQUAL(window.cumulative_seq(), 0u);
  u64 words[kWindowSegments / 64];
  CHECK_EQUAL(window.copy_words(0, kWindowSegments / 64, words), kWindowSegments / 64);
  CHECK_EQUAL(words[0], ~u64{1});
  CHECK_EQUAL(words[kWindowSegments / 64 - 1], ~u64{0});
  CHECK_EQUAL(window.on_arrival(0), Arrival::fresh);
  CHECK_EQUAL(window.cumulative_seq(), kWindowSegments);
  CHECK_EQUAL(pool.blocks_in_use(), 0u);
}
