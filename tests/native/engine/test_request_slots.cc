// Tests that slots of requests are allocated as messages need them, and used again once messages are released in order.
#include <cstdint>
#include <set>
#include <vector>

#include "native/engine/request_slots.h"
#include "tests/native/check.h"

using weft::Status;
using weft::engine::RequestSlot;
using weft::engine::RequestSlots;

namespace {

// Gives a slot to the message, which is outstanding from then on.
RequestSlot* post(RequestSlots* slots, std::uint64_t message) {
  RequestSlot* slot = nullptr;
  CHECK_EQUAL(slots->obtain(message, &slot), Status::ok);
  CHECK(slot != nullptr && !slot->taken());
  slot->begin(nullptr, 0, nullptr);
  slots->take(message);
  CHECK_EQUAL(slot->message, message);
  return slot;
}

std::vector<std::uint64_t> outstanding(const RequestSlots& slots) {
  std::vector<std::uint64_t> found;
  slots.each([&](const RequestSlot& slot) {
    if (slot.taken()) found.push_back(slot.message);
  });
  return found;
}

}  // namespace

TEST(request_slots__messages_one_after_the_other_need_one_slot) {
  RequestSlots slots;
  std::set<RequestSlot*> used;
  for (std::uint64_t message = 0; message < 1000; ++message) {
    RequestSlot* const slot = post(&slots, message);
    CHECK(!slots.follows_taken());
    slot->release();
    used.insert(slot);
  }
  CHECK_EQUAL(used.size(), 1u);
}

TEST(request_slots__a_message_needs_the_128th_before_it_to_be_released) {
  RequestSlots slots;
  std::vector<RequestSlot*> posted;
  for (std::uint64_t message = 0; message < RequestSlots::kSlots; ++message) posted.push_back(post(&slots, message));
  CHECK(slots.follows_taken());
  CHECK_EQUAL(std::set<RequestSlot*>(posted.begin(), posted.end()).size(), RequestSlots::kSlots);
  for (std::uint64_t message = 1; message < RequestSlots::kSlots; ++message) posted[message]->release();
  RequestSlot* none = nullptr;
  CHECK_EQUAL(slots.obtain(RequestSlots::kSlots, &none), Status::would_block);
  CHECK(outstanding(slots) == std::vector<std::uint64_t>{0});
  posted[0]->release();
  for (std::uint64_t message = 0; message < RequestSlots::kSlots; ++message) {
    RequestSlot* const again = post(&slots, RequestSlots::kSlots + message);
    CHECK(std::set<RequestSlot*>(posted.begin(), posted.end()).count(again) != 0);
  }
  CHECK_EQUAL(outstanding(slots).size(), RequestSlots::kSlots);
}

TEST(request_slots__a_slot_that_no_message_took_is_free_for_the_next) {
  RequestSlots slots;
  RequestSlot *first = nullptr, *second = nullptr;
  CHECK_EQUAL(slots.obtain(0, &first), Status::ok);
  CHECK_EQUAL(slots.obtain(0, &second), Status::ok);
  CHECK(first == second);
  CHECK(outstanding(slots).empty());
}

TEST(request_slots__a_ticket_names_its_slot) {
  RequestSlots slots;
  RequestSlot* const slot = post(&slots, 5);
  CHECK(&RequestSlot::with(&slot->ticket()) == slot);
}
