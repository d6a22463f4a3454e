// Tests that the queue of events keeps order, and takes events while memory is lacking.
#include <cstdlib>

#include "native/core/events.h"
#include "tests/native/check.h"

using namespace weft::core;

namespace {

bool lacking = false;

void push(EventQueue* queue, u64 value) {
  Event event{};
  event.kind = Event::Kind::send_done;
  event.value = value;
  queue->push(event);
}

TEST(events__keep_their_order) {
  EventQueue queue;
  Event event;
  CHECK(!queue.poll(&event));
  for (u64 turn = 0; turn < 3; ++turn) {
    for (u64 i = 0; i < 100; ++i) push(&queue, i);
    for (u64 i = 0; i < 100; ++i) {
      CHECK(queue.poll(&event));
      CHECK_EQUAL(event.value, i);
    }
    CHECK(queue.empty());
  }
}

TEST(events__are_kept_while_memory_is_lacking) {
  EventQueue queue;
  Event event;
  for (u64 i = 0; i < 100; ++i) push(&queue, i);
  while (queue.poll(&event)) {
  }
  lacking = true;
  for (u64 i = 0; i < 200; ++i) push(&queue, i);
  for (u64 i = 0; i < 200; ++i) {
    CHECK(queue.poll(&event));
    CHECK_EQUAL(event.value, i);
  }
  lacking = false;
  for (u64 i = 0; i < 1000; ++i) push(&queue, i);
  CHECK(queue.poll(&event));
  CHECK_EQUAL(event.value, 0u);
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const at = lacking ? nullptr : std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
