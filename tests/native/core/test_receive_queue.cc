// Tests where received bytes go: eager and posted messages, contradictory sizes, and everything that is refused.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "native/core/receive_queue.h"
#include "native/wire/crc32c.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::Status;
using Placement = ReceiveQueue::Placement;
namespace wire = weft::wire;

namespace {

StackConfig small_config() {
  StackConfig config;
  config.eager_bytes = 64;
  config.eager_slots = 4;
  return config;
}

struct Bench {
  explicit Bench(u8 stripe = 0, u8 stripes = 1, const StackConfig& config = small_config())
      : shared(config), queue(&shared, {config.eager_bytes, config.eager_slots}, stripe, stripes) {}
  Shared shared;
  ReceiveQueue queue;

  Status post(u64 message, std::vector<u8>* buffer, ReceiveTicket* ticket) {
    ticket->message.store(message);
    return queue.post(0, {message, buffer->data(), buffer->size(), 0, ticket, nullptr});
  }
  Placement deliver(u64 message, u64 offset, const std::vector<u8>& payload, u64 message_bytes) {
    const Placement placement = queue.check(message, offset, payload.size(), message_bytes);
    if (placement != Placement::placed) return placement;
    queue.write(message, offset, payload.data(), payload.size());
    queue.place(0, message, offset, payload.size());
    return placement;
  }
  int placed_events(u64* bytes = nullptr) {
    int count = 0;
    for (Event event; shared.events.poll(&event);) {
      CHECK(event.kind == Event::Kind::stripe_placed);
      if (bytes != nullptr) *bytes = event.value;
      ++count;
    }
    return count;
  }
};

std::vector<u8> bytes_of(std::size_t count, u8 value) { return std::vector<u8>(count, value); }

}  // namespace

TEST(receive_queue__a_posted_receive_takes_segments_in_any_order) {
  Bench bench;
  std::vector<u8> buffer = bytes_of(40, 0xEE);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.deliver(0, 20, bytes_of(10, 3), 30), Placement::placed);
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(10, 1), 30), Placement::placed);
  CHECK_EQUAL(bench.placed_events(), 0);
  CHECK_EQUAL(bench.deliver(0, 10, bytes_of(10, 2), 30), Placement::placed);
  u64 message_bytes = 0;
  CHECK_EQUAL(bench.placed_events(&message_bytes), 1);
  CHECK_EQUAL(message_bytes, 30u);
  for (std::size_t i = 0; i < 40; ++i) CHECK_EQUAL(int{buffer[i]}, i < 30 ? static_cast<int>(1 + i / 10) : 0xEE);
  // P-1: no further segment is accepted for a complete message.
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(10, 9), 30), Placement::refused);
  CHECK_EQUAL(int{buffer[0]}, 1);
}

// Bytes of a damaged segment do not count; they are overwritten when the segment arrives again.
TEST(receive_queue__what_is_written_and_not_placed_is_written_again) {
  const std::vector<u8> good = {1, 2, 3, 4, 5, 6, 7, 8}, damaged = {1, 2, 3, 0xBD, 5, 6, 7, 8};
  const u32 crc = wire::crc32c(0, good.data(), good.size());
  for (const char* where : {"posted", "eager", "staged"}) {
    Bench bench;
    std::vector<u8> buffer = bytes_of(12, 0xEE), ring(12, 0xEE);
    ReceiveTicket ticket;
    std::atomic<u32> released[3] = {};
    Stage stage;
    stage.ring = ring.data();
    stage.ring_bytes = ring.size();
    stage.piece_bytes = 4;
    stage.released = released;
    stage.limit = ring.size();
    ticket.message.store(0);
    const bool staged = std::string(where) == "staged", eager = std::string(where) == "eager";
    if (staged) CHECK_EQUAL(bench.queue.post(0, {0, nullptr, 12, 0, &ticket, &stage}), Status::ok);
    if (!staged && !eager) CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
    CHECK_EQUAL(bench.queue.check(0, 0, 8, 8), Placement::placed);
    CHECK(bench.queue.write_checked(0, 0, damaged.data(), 8) != crc);
    CHECK_EQUAL(bench.placed_events(), 0);
    for (const auto& piece : released) CHECK_EQUAL(piece.load(), 0u);
    CHECK_EQUAL(bench.queue.check(0, 0, 8, 8), Placement::placed);
    CHECK_EQUAL(bench.queue.write_checked(0, 0, good.data(), 8), crc);
    CHECK(bench.queue.place(0, 0, 0, 8));
    if (eager) CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
    CHECK_EQUAL(bench.placed_events(), 1);
    if (staged) CHECK(released[0] == 4 && released[1] == 4 && released[2] == 0);
    const std::vector<u8>& found = staged ? ring : buffer;
    CHECK(std::equal(good.begin(), good.end(), found.begin()));
    for (std::size_t i = 8; i < 12; ++i) CHECK_EQUAL(int{found[i]}, 0xEE);
  }
}

// A segment that wraps around the end of a ring is written in two parts, over which one CRC is computed.
TEST(receive_queue__a_checked_segment_may_straddle_the_end_of_a_ring) {
  Bench bench;
  std::vector<u8> ring(16), payload(24);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<u8>(i);
  std::atomic<u32> released[2] = {};
  Stage stage;
  stage.ring = ring.data();
  stage.ring_bytes = 16;
  stage.piece_bytes = 8;
  stage.released = released;
  stage.limit = 24;
  ReceiveTicket ticket;
  ticket.message.store(0);
  CHECK_EQUAL(bench.queue.post(0, {0, nullptr, 24, 0, &ticket, &stage}), Status::ok);
  CHECK_EQUAL(bench.queue.check(0, 10, 12, 24), Placement::placed);
  CHECK_EQUAL(bench.queue.write_checked(0, 10, &payload[10], 12), wire::crc32c(0, &payload[10], 12));
  for (std::size_t i = 10; i < 22; ++i) CHECK_EQUAL(ring[i % 16], payload[i]);
}

TEST(receive_queue__an_eager_message_waits_for_its_receive) {
  Bench bench;
  CHECK_EQUAL(bench.deliver(1, 0, bytes_of(16, 7), 16), Placement::placed);
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(8, 5), 16), Placement::placed);
  CHECK_EQUAL(bench.shared.eager_blocks.blocks_in_use(), 2u);
  CHECK_EQUAL(bench.placed_events(), 0);
  std::vector<u8> first = bytes_of(32, 0xEE), second = bytes_of(16, 0xEE);
  ReceiveTicket tickets[2];
  CHECK_EQUAL(bench.post(0, &first, &tickets[0]), Status::ok);
  CHECK_EQUAL(bench.placed_events(), 0);  // half of the message is still missing
  CHECK_EQUAL(bench.deliver(0, 8, bytes_of(8, 6), 16), Placement::placed);
  CHECK_EQUAL(bench.placed_events(), 1);
  CHECK_EQUAL(int{first[7]}, 5);
  CHECK_EQUAL(int{first[8]}, 6);
  CHECK_EQUAL(int{first[16]}, 0xEE);
  CHECK_EQUAL(bench.post(1, &second, &tickets[1]), Status::ok);
  CHECK_EQUAL(bench.placed_events(), 1);
  CHECK_EQUAL(int{second[15]}, 7);
  CHECK_EQUAL(bench.shared.eager_blocks.blocks_in_use(), 0u);
}

TEST(receive_queue__eager_slots_and_their_size_are_bounds) {
  Bench bench;
  CHECK_EQUAL(bench.deliver(4, 0, bytes_of(1, 1), 1), Placement::refused);
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(65, 1), 65), Placement::refused);
  CHECK_EQUAL(bench.shared.eager_blocks.blocks_in_use(), 0u);
  for (u64 message = 0; message < 4; ++message) {
    CHECK_EQUAL(bench.deliver(message, 0, bytes_of(64, 1), 64), Placement::placed);
  }
  CHECK_EQUAL(bench.deliver(~u64{0}, 0, bytes_of(1, 1), 1), Placement::refused);
}

TEST(receive_queue__an_eager_message_that_is_too_long_for_its_receive) {
  Bench bench;
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(20, 1), 20), Placement::placed);
  std::vector<u8> buffer = bytes_of(19, 0xEE);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::message_too_long);
  CHECK(buffer == bytes_of(19, 0xEE));
}

TEST(receive_queue__what_does_not_fit_is_refused_and_writes_nothing) {
  Bench bench;
  std::vector<u8> buffer = bytes_of(100, 0xEE);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(8, 1), 101), Placement::too_long);
  CHECK_EQUAL(bench.deliver(0, 60, bytes_of(8, 1), 64), Placement::refused);
  CHECK_EQUAL(bench.deliver(0, 65, bytes_of(8, 1), 64), Placement::refused);
  CHECK_EQUAL(bench.deliver(0, ~u64{0} - 3, bytes_of(8, 1), 64), Placement::refused);
  CHECK_EQUAL(bench.deliver(0, 0, {}, 64), Placement::refused);
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(8, 1), kMessageBytesMax + 1), Placement::refused);
  CHECK(buffer == bytes_of(100, 0xEE));
  CHECK_EQUAL(bench.deliver(0, 0, bytes_of(8, 1), 64), Placement::placed);
  // The message's size is fixed by its first segment: a segment with another size is refused.
  CHECK_EQUAL(bench.deliver(0, 8, bytes_of(8, 1), 72), Placement::refused);
  CHECK_EQUAL(bench.placed_events(), 0);
}

TEST(receive_queue__a_message_of_no_bytes_is_a_message) {
  Bench bench;
  std::vector<u8> buffer = bytes_of(4, 0xEE);
  ReceiveTicket tickets[2];
  CHECK_EQUAL(bench.post(0, &buffer, &tickets[0]), Status::ok);
  CHECK_EQUAL(bench.placed_events(), 0);
  CHECK_EQUAL(bench.deliver(0, 0, {}, 0), Placement::placed);
  CHECK_EQUAL(bench.placed_events(), 1);
  CHECK_EQUAL(bench.deliver(1, 0, {}, 0), Placement::placed);
  CHECK_EQUAL(bench.placed_events(), 0);
  CHECK_EQUAL(bench.post(1, &buffer, &tickets[1]), Status::ok);
  CHECK_EQUAL(bench.placed_events(), 1);
  CHECK_EQUAL(bench.shared.eager_blocks.blocks_in_use(), 0u);
}

TEST(receive_queue__posts_are_bounded_and_slots_are_used_again) {
  Bench bench;
  std::vector<u8> buffer = bytes_of(4, 0);
  std::vector<ReceiveTicket> tickets(3 * ReceiveQueue::kPostedMax);
  u64 posted = 0;
  while (bench.post(posted, &buffer, &tickets[posted]) == Status::ok) ++posted;
  CHECK_EQUAL(posted, ReceiveQueue::kPostedMax);
  for (u64 message = 0; message < 2 * ReceiveQueue::kPostedMax; ++message) {
    CHECK_EQUAL(bench.deliver(message, 0, bytes_of(4, 1), 4), Placement::placed);
    CHECK_EQUAL(bench.post(posted, &buffer, &tickets[posted]), Status::ok);
    ++posted;
  }
  CHECK(bench.queue.pending());
}

TEST(receive_queue__flows_of_a_connection_agree_on_the_size) {
  constexpr u64 kBytes = 4 * kStripeBytesMin;
  Bench first(0, 2), second(1, 2);
  std::vector<u8> buffer(kBytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(first.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(second.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(first.deliver(0, 0, bytes_of(8, 1), kBytes), Placement::placed);
  CHECK_EQUAL(second.deliver(0, kBytes - 8, bytes_of(8, 1), kBytes - 4096), Placement::refused);
  // These bytes belong to the stripe of the other flow.
  CHECK_EQUAL(second.deliver(0, 0, bytes_of(8, 1), kBytes), Placement::refused);
  CHECK_EQUAL(second.deliver(0, kBytes - 8, bytes_of(8, 1), kBytes), Placement::placed);
}
