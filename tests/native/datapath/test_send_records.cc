// Tests records of posted bursts, over a port of the null provider: the resources of a burst are released exactly once.

#include "native/datapath/verbs/send_records.h"
#include "tests/native/check.h"
#include "tests/native/verbs/null_provider.h"

using namespace weft::datapath;

namespace {

constexpr std::uint32_t kSlots = 128;

struct Port {
  Port() {
    null_provider_reset({});
    Place place;
    place.port = "null0:1@1";
    VerbsOptions options;
    options.segment_bytes = 4096;
    options.slots = kSlots;
    std::string error;
    CHECK(port.open(null_provider(), place, options, &error));
    CHECK(port.make_data_qp(&pair, &error));
    CHECK(port.make_data_qp(&other, &error));
    records.reset(4);
  }
  VerbsPort port;
  QueuePair pair, other;
  SendRecords records;
};

}  // namespace

TEST(records__take_slots_and_queue_entries_and_give_them_back) {
  Port at;
  CHECK(at.records.has_room(at.port, at.pair, 3, 2));
  SendRecord* record = at.records.take(&at.port, &at.pair, 3, 2);
  CHECK_EQUAL(at.pair.sends_under_way, 3u);
  CHECK_EQUAL(at.port.free_sends.size(), kSlots - 2);
  CHECK(record->slots[0] != record->slots[1]);
  at.records.give_back(record);
  CHECK_EQUAL(at.pair.sends_under_way, 0u);
  CHECK_EQUAL(at.port.free_sends.size(), std::size_t{kSlots});
}

TEST(records__have_no_room_without_a_record_a_slot_or_a_queue_entry) {
  Port at;
  CHECK(!at.records.has_room(at.port, at.pair, 1, kSlots + 1));
  CHECK(!at.records.has_room(at.port, at.pair, at.pair.sends_max() + 1, 1));
  for (int i = 0; i < 4; ++i) CHECK(at.records.take(&at.port, &at.pair, 1, 1) != nullptr);
  CHECK(!at.records.has_room(at.port, at.other, 1, 1));
}

TEST(records__of_one_completion_are_found_once) {
  Port at;
  SendRecord* record = at.records.take(&at.port, &at.pair, 1, 1);
  const std::uint64_t id = at.records.id_of(*record);
  bool foreign = true;
  CHECK(at.records.completed(id, &foreign) == record);
  CHECK(!foreign);
  at.records.give_back(record);
  CHECK(at.records.completed(id, &foreign) ==
        nullptr);  // a second completion, as for flushed requests of a chain, is ignored
  CHECK(!foreign);
  SendRecord* next = at.records.take(&at.port, &at.pair, 1, 1);
  CHECK(next == record);
  CHECK(at.records.completed(id, &foreign) == nullptr);  // a completion of the previous burst is ignored
  CHECK(at.records.id_of(*next) != id);
}

TEST(records__that_do_not_exist_are_foreign) {
  Port at;
  bool foreign = false;
  CHECK(at.records.completed(4, &foreign) == nullptr);
  CHECK(foreign);
}

TEST(records__of_a_queue_pair_that_was_reset_are_given_back_and_no_others) {
  Port at;
  for (int i = 0; i < 2; ++i) at.records.take(&at.port, &at.pair, 2, 1);
  at.records.take(&at.port, &at.other, 2, 1);
  at.records.give_back_of(&at.pair);
  CHECK_EQUAL(at.pair.sends_under_way, 0u);
  CHECK_EQUAL(at.other.sends_under_way, 2u);
  CHECK_EQUAL(at.port.free_sends.size(), kSlots - 1);
}

TEST(records__know_whether_their_payload_is_of_one_registration) {
  SendRecord record;
  record.reads_from(7);
  record.reads_from(7);
  CHECK_EQUAL(record.memory, 7u);
  record.reads_from(8);
  CHECK_EQUAL(record.memory, SendRecord::kSeveral);
}
