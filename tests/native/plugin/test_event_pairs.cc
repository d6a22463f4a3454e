// Tests which events a chained profiler's table remembers: all that have not ended, and the last ones that have.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "native/plugin/profiler/event_pairs.h"
#include "tests/native/check.h"

using weft::nccl::EventPair;
using weft::nccl::EventPairs;
using Lifetime = EventPairs::Lifetime;

namespace {

void* pointer(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

EventPair pair_of(std::uintptr_t number) { return {pointer(number), pointer(number + 1), pointer(number + 2)}; }

bool is_pair_of(const EventPair& pair, std::uintptr_t number) {
  return pair.own == pointer(number) && pair.chained == pointer(number + 1) && pair.context == pointer(number + 2);
}

// Starts and ends events.
void pass(EventPairs* pairs, std::uint32_t events, Lifetime lifetime) {
  for (std::uint32_t i = 0; i < events; ++i) {
    void* const event = pairs->add(pair_of(1), lifetime);
    CHECK(event != nullptr);
    CHECK(is_pair_of(pairs->end(event), 1));
  }
}

}  // namespace

TEST(event_pairs__an_event_that_has_not_ended_is_never_forgotten) {
  const auto pairs = std::make_unique<EventPairs>();
  void* const open = pairs->add(pair_of(100), Lifetime::past_end);
  void* const captured = pairs->add(pair_of(200), Lifetime::replays);
  pass(pairs.get(), 3 * EventPairs::kKeptMax, Lifetime::past_end);
  pass(pairs.get(), 2 * EventPairs::kCaptured, Lifetime::replays);
  CHECK(is_pair_of(pairs->end(open), 100));
  CHECK(is_pair_of(pairs->end(captured), 200));
  CHECK_EQUAL(pairs->lost(), 0u);
}

TEST(event_pairs__ended_events_are_forgotten_in_their_order) {
  const auto pairs = std::make_unique<EventPairs>();
  void* const first = pairs->add(pair_of(100), Lifetime::past_end);
  void* const captured = pairs->add(pair_of(200), Lifetime::replays);
  pairs->end(first);
  pairs->end(captured);
  pass(pairs.get(), EventPairs::kEnded - 1, Lifetime::past_end);
  CHECK(is_pair_of(pairs->find(first), 100));
  pass(pairs.get(), 1, Lifetime::past_end);
  CHECK(pairs->find(first).own == nullptr);
  CHECK_EQUAL(pairs->lost(), 1u);
  CHECK(is_pair_of(pairs->find(captured), 200));
  pass(pairs.get(), EventPairs::kCaptured, Lifetime::replays);
  CHECK(pairs->find(captured).own == nullptr);
  CHECK_EQUAL(pairs->lost(), 2u);
}

TEST(event_pairs__an_event_that_ends_twice_takes_no_other_one_along) {
  const auto pairs = std::make_unique<EventPairs>();
  void* const twice = pairs->add(pair_of(100), Lifetime::past_end);
  pairs->end(twice);
  pairs->end(twice);
  pass(pairs.get(), EventPairs::kEnded - 2, Lifetime::past_end);
  void* const next = pairs->add(pair_of(200), Lifetime::past_end);
  pass(pairs.get(), 1, Lifetime::past_end);
  CHECK(pairs->find(twice).own == nullptr);
  void* const reused = pairs->add(pair_of(300), Lifetime::past_end);
  pass(pairs.get(), 2, Lifetime::past_end);
  CHECK(is_pair_of(pairs->find(next), 200));
  CHECK(is_pair_of(pairs->find(reused), 300));
}

TEST(event_pairs__an_event_without_room_is_counted) {
  const auto pairs = std::make_unique<EventPairs>();
  std::vector<void*> open;
  while (void* const event = pairs->add(pair_of(1), Lifetime::past_end)) open.push_back(event);
  CHECK_EQUAL(open.size(), std::size_t{EventPairs::kKeptMax});
  CHECK_EQUAL(pairs->lost(), 1u);
  for (void* const event : open) CHECK(is_pair_of(pairs->end(event), 1));
  pass(pairs.get(), 10, Lifetime::past_end);
  CHECK_EQUAL(pairs->lost(), 1u);
}

TEST(event_pairs__a_lookup_never_mixes_two_events) {
  const auto pairs = std::make_unique<EventPairs>();
  std::atomic<void*> shared{pairs->add(pair_of(100), Lifetime::past_end)};
  std::atomic<bool> done{false};
  std::atomic<int> mixed{0};
  std::thread reader([&] {
    while (!done.load()) {
      const EventPair found = pairs->find(shared.load());
      const auto number = reinterpret_cast<std::uintptr_t>(found.own);
      if (number != 0 && !is_pair_of(found, number)) mixed.fetch_add(1);
    }
  });
  for (std::uintptr_t i = 0; i < 4 * EventPairs::kEnded; ++i) {
    void* const event = pairs->add(pair_of(100 + i), Lifetime::past_end);
    if (i % 1024 == 0) shared.store(event);
    pairs->end(event);
  }
  done.store(true);
  reader.join();
  CHECK_EQUAL(mixed.load(), 0);
}
