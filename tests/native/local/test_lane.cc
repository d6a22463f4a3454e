// Tests the ring of bytes between two processes: order, wrapping, and positions that a hostile peer wrote.
#include <memory>
#include <thread>
#include <vector>

#include "native/local/lane.h"
#include "tests/native/check.h"
#include "tests/native/draw.h"

namespace {

using namespace weft;
using namespace weft::local;

struct Shared {
  Lane lane{};
  Ring ring{};
};

}  // namespace

TEST(lane__keeps_bytes_and_order_around_its_end) {
  const auto shared = std::make_unique<Shared>();
  Lane* const lane = &shared->lane;
  LaneWriter writer(lane, shared->ring);
  LaneReader reader(lane, shared->ring);
  std::vector<std::uint8_t> sent(kRingBytes / 3), received(sent.size());
  for (std::uint64_t round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::uint8_t>(i * 7 + round);
    std::uint64_t room = 0, waiting = 0;
    CHECK(writer.room(&room));
    CHECK(room >= sent.size());
    writer.write(sent.data(), sent.size());
    writer.align();
    CHECK(reader.waiting(&waiting));
    CHECK_EQUAL(waiting, 0u);  // not published
    writer.publish();
    CHECK(reader.waiting(&waiting));
    CHECK(waiting >= sent.size());
    reader.read(received.data(), received.size());
    reader.align();
    reader.publish();
    CHECK(sent == received);
  }
}

TEST(lane__two_threads_pass_numbers) {
  const auto shared = std::make_unique<Shared>();
  Lane* const lane = &shared->lane;
  constexpr std::uint64_t kNumbers = 50'000;
  std::thread sender([&] {
    LaneWriter writer(lane, shared->ring);
    for (std::uint64_t i = 0; i < kNumbers;) {
      std::uint64_t room = 0;
      if (!writer.room(&room)) return;
      for (; room >= kAlign && i < kNumbers; room -= kAlign, ++i) {
        writer.write(&i, sizeof i);
        writer.align();
      }
      writer.publish();
    }
  });
  LaneReader reader(lane, shared->ring);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kNumbers;) {
    std::uint64_t waiting = 0;
    if (!reader.waiting(&waiting)) ++wrong;
    for (; waiting != 0; waiting -= kAlign, ++i) {
      std::uint64_t number = 0;
      reader.read(&number, sizeof number);
      reader.align();
      wrong += number != i;
    }
    reader.publish();
    std::this_thread::yield();
  }
  sender.join();
  CHECK_EQUAL(wrong, 0u);
}

TEST(lane__positions_that_cannot_be_are_refused) {
  const auto shared = std::make_unique<Shared>();
  Lane* const lane = &shared->lane;
  LaneReader reader(lane, shared->ring);
  std::uint64_t count = 0;
  const std::uint64_t impossible[] = {kRingBytes + kAlign, 8, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  for (const std::uint64_t produced : impossible) {
    lane->produced.store(produced);
    CHECK(!reader.waiting(&count));
    CHECK_EQUAL(reader.violation().value, produced);
  }
  CHECK_EQUAL(reader.violation().text(), "produced is 18446744073709551615, and can be 0 to 262144 in steps of 16");
  lane->produced.store(64);
  CHECK(reader.waiting(&count));
  CHECK_EQUAL(count, 64u);
  lane->produced.store(48);  // it never goes back
  CHECK(!reader.waiting(&count));

  LaneWriter writer(lane, shared->ring);
  lane->consumed.store(16);  // more than was written
  CHECK(!writer.room(&count));
  CHECK_EQUAL(writer.violation().text(), "consumed is 16, and can be 0");
  lane->lent.store(4);  // two messages, of which one was lent
  LentCounts copied;
  CHECK(!writer.copied({1, 0}, &copied));
  CHECK_EQUAL(writer.violation().text(), "the count of copied messages is 2, and can be 0 to 1");
  CHECK(writer.copied({2, 0}, &copied));
  CHECK_EQUAL(copied.lent, 2u);
  lane->loans.store(2);  // no device lent any
  CHECK(!writer.copied({2, 0}, &copied));
  CHECK_EQUAL(writer.violation().text(), "the count of copied loans is 1, and can be 0");
  CHECK(writer.copied({2, 1}, &copied));
  CHECK_EQUAL(copied.loans, 1u);
}

TEST(lane__a_lent_message_is_copied_or_taken_back) {
  const auto shared = std::make_unique<Shared>();
  Lane* const lane = &shared->lane;
  LaneWriter writer(lane, shared->ring);
  LaneReader reader(lane, shared->ring);
  LentCounts count;
  CHECK(reader.count_copied());
  CHECK(reader.count_loan());
  CHECK(reader.count_loan());
  CHECK(!reader.taken_back());
  CHECK(writer.take_back({2, 3}, &count));
  CHECK_EQUAL(count.lent, 1u);
  CHECK_EQUAL(count.loans, 2u);
  CHECK(reader.taken_back());
  CHECK(!reader.count_copied());
  CHECK(!reader.count_loan());
}
