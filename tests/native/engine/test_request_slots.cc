// Tests that slots of requests are allocated as messages use them, and used again.
#include <cstdint>

#include "native/engine/request_slots.h"
#include "tests/native/check.h"

using weft::engine::RequestSlot;
using weft::engine::RequestSlots;

namespace {

int allocated(const RequestSlots& slots) {
  int count = 0;
  slots.each([&](const RequestSlot&) { ++count; });
  return count;
}

}  // namespace

TEST(request_slots__few_messages_need_few_slots) {
  RequestSlots slots;
  CHECK_EQUAL(allocated(slots), 0);
  for (std::uint64_t message = 0; message < 8; ++message) CHECK(slots.obtain(message) != nullptr);
  CHECK_EQUAL(allocated(slots), 8);
  CHECK(slots.obtain(8) != nullptr);
  CHECK_EQUAL(allocated(slots), 16);
}

TEST(request_slots__a_slot_serves_every_128th_message) {
  RequestSlots slots;
  for (std::uint64_t message = 0; message < RequestSlots::kSlots; ++message) {
    RequestSlot* const slot = slots.obtain(message);
    CHECK(slot != nullptr && slot->usable());
    slot->begin(nullptr, 0, nullptr);  // from now on taken: no other message may get it
    CHECK(&slots.of(message) == slot);
  }
  CHECK_EQUAL(allocated(slots), 128);
  for (std::uint64_t message = 0; message < RequestSlots::kSlots; ++message) {
    CHECK(slots.obtain(message + RequestSlots::kSlots) == &slots.of(message));
  }
  CHECK_EQUAL(allocated(slots), 128);
}
