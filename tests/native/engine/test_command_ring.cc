// Tests that commands of several threads arrive once each, in each thread's order, and never more than were reserved.
// The test does not sleep.
#include <thread>
#include <vector>

#include "native/engine/command_ring.h"
#include "tests/native/check.h"

namespace {

struct Note {
  std::uint32_t thread;
  std::uint32_t number;
};

}  // namespace

TEST(command_ring__keeps_each_threads_order) {
  constexpr std::uint32_t kThreads = 3, kNotes = 20'000;
  weft::engine::CommandRing<Note> ring(64);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&ring, thread] {
      for (std::uint32_t number = 0; number < kNotes;) {
        if (!ring.reserve(1)) {
          std::this_thread::yield();
          continue;
        }
        ring.post({thread, number++});
      }
    });
  }
  std::uint32_t next[kThreads] = {};
  for (std::uint32_t taken = 0; taken < kThreads * kNotes;) {
    Note note{};
    if (!ring.poll(&note)) {
      std::this_thread::yield();
      continue;
    }
    CHECK_EQUAL(note.number, next[note.thread]);
    ++next[note.thread];
    ++taken;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ring.empty());
}

TEST(command_ring__reservation_is_the_limit) {
  weft::engine::CommandRing<Note> ring(4);
  CHECK(ring.reserve(3));
  CHECK(!ring.reserve(2));
  CHECK(ring.reserve(1));
  CHECK(!ring.reserve(1));
  ring.give_back(1);
  CHECK(ring.reserve(1));
  for (std::uint32_t i = 0; i < 4; ++i) ring.post({0, i});
  Note note{};
  CHECK(ring.poll(&note));
  CHECK(ring.reserve(1));
}
