// Tests a receiver without memory for a segment: it tells the sender, the segment waits and is no loss, and other flows
// are not affected.
#include <algorithm>
#include <map>

#include "tests/native/check.h"
#include "tests/native/pair.h"
#include "tests/native/rig/rig_stage.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

constexpr u64 kSmallBytes = 4000;  // a message of three segments
constexpr u64 kBulkBytes = 4 << 20;
constexpr i64 kMs = 1'000'000;

// Many connections whose small messages are not received, and one connection that transfers a long message.
struct Crowd {
  Crowd(u64 connections, const StackConfig& config) : pair(config), small(weft::test::pattern(kSmallBytes, 5)) {
    for (u64 i = 0; i < connections; ++i) flows.push_back(pair.add_flow());
    CHECK(pair.opened);
    for (const auto& flow : flows) {
      for (u64 message = 0; message < config.eager_slots; ++message) {
        CHECK_EQUAL(
            pair.stack[0].post_send(pair.now_ns, flow[0], {message, small.data(), kSmallBytes, 0, nullptr, nullptr}),
            Status::ok);
      }
    }
  }
  // Runs for a while, so that every sender has sent what it may and knows which messages lack room.
  void settle(i64 for_ns) {
    const i64 until_ns = pair.now_ns + for_ns;
    static_cast<void>(pair.run([&] { return pair.now_ns >= until_ns; }, drops));
  }
  // Receives all messages, one per connection in turn.
  void read_all(u64 messages) {
    for (u64 message = 0; message < messages; ++message) {
      for (std::size_t i = 0; i < flows.size(); ++i) {
        read.push_back(std::make_unique<Pair::Buffer>());
        Pair::Buffer& buffer = *read.back();
        buffer.bytes.resize(kSmallBytes);
        buffer.ticket.message.store(message);
        CHECK_EQUAL(pair.stack[1].post_receive(pair.now_ns, flows[i][1],
                                               {message, buffer.bytes.data(), kSmallBytes, 0, &buffer.ticket, nullptr}),
                    Status::ok);
      }
      settle(kMs);
    }
  }
  u64 placed() {
    u64 count = 0;
    for (Event event; pair.stack[1].poll_event(&event);) count += event.kind == Event::Kind::stripe_placed ? 1 : 0;
    return count;
  }
  i64 sum(weft::telemetry::Cell FlowCells::* counter) {
    i64 sum = 0;
    for (const auto& flow : flows) sum += pair.stack[0].flow(flow[0])->tx.counters().*counter;
    return sum;
  }

  Pair pair;
  std::vector<std::array<u32, 2>> flows;
  std::vector<u8> small;
  std::vector<std::unique_ptr<Pair::Buffer>> read;
  std::function<bool(const Wired&)> drops;
};

StackConfig config_of(u64 blocks) {
  StackConfig config = weft::test::shipped_config();
  config.eager_blocks = blocks;
  return config;
}

}  // namespace

// 200 connections need 3,200 blocks for eager messages, but an engine has 2,048.
TEST(room__unread_messages_of_many_connections_leave_a_long_one_alone) {
  Crowd crowd(200, config_of(2048));
  crowd.settle(50 * kMs);
  CHECK(crowd.sum(&FlowCells::segments_held) > 0);
  CHECK_EQUAL(crowd.sum(&FlowCells::segments_lost), 0);
  // All connections hold about the same number of blocks, and some are left for new connections.
  u64 least = ~u64{0}, most = 0;
  for (const auto& flow : crowd.flows) {
    const u64 held = crowd.pair.stack[1].flow(flow[1])->rx.eager_held();
    least = std::min(least, held);
    most = std::max(most, held);
  }
  CHECK(least >= 1);
  CHECK(crowd.pair.stack[1].shared().eager_blocks.blocks_in_use() < 2048);
  const i64 sent_before = crowd.sum(&FlowCells::segments_sent);
  const std::vector<u8> sent = weft::test::pattern(kBulkBytes, 1);
  std::vector<u8> buffer(kBulkBytes);
  ReceiveTicket ticket;
  CHECK_EQUAL(crowd.pair.receive(1, buffer.data(), kBulkBytes, &ticket), Status::ok);
  CHECK_EQUAL(crowd.pair.send(0, sent.data(), kBulkBytes), Status::ok);
  CHECK(crowd.pair.run([&] { return crowd.pair.received_bytes(1) == kBulkBytes; }));
  CHECK(buffer == sent);
  const FlowCells& bulk = crowd.pair.stack[0].flow(crowd.pair.flow[0])->tx.counters();
  CHECK_EQUAL(bulk.segments_resent, 0);
  CHECK_EQUAL(bulk.segments_lost, 0);
  // In a second of waiting, each connection retries only a few times.
  crowd.settle(1000 * kMs);
  CHECK(crowd.sum(&FlowCells::segments_sent) - sent_before < 200 * 3 * 8);
  CHECK_EQUAL(crowd.sum(&FlowCells::segments_lost), 0);
  crowd.read_all(16);
  crowd.settle(5000 * kMs);
  CHECK_EQUAL(crowd.placed(), u64{200} * 16 + 1);
  for (const auto& each : crowd.read) CHECK(each->bytes == crowd.small);
  CHECK(!crowd.pair.stack[0].flow(crowd.flows[0][0])->tx.has_outstanding());
}

TEST(room__a_connection_that_holds_nothing_finds_a_block_though_others_want_all) {
  Crowd crowd(12, config_of(64));
  crowd.settle(50 * kMs);
  CHECK(crowd.sum(&FlowCells::segments_held) > 0);
  const std::vector<u8> sent = weft::test::pattern(kSmallBytes, 9);
  CHECK_EQUAL(crowd.pair.send(0, sent.data(), kSmallBytes), Status::ok);
  CHECK(crowd.pair.run([&] { return crowd.pair.received_bytes(1) == kSmallBytes; }, nullptr, 10 * kMs));
  const FlowCells& fresh = crowd.pair.stack[0].flow(crowd.pair.flow[0])->tx.counters();
  CHECK_EQUAL(fresh.segments_held, 0);
  CHECK_EQUAL(fresh.segments_resent, 0);
}

// The receiver tells the sender as soon as there is room, so that the sender need not wait for its next retry.
TEST(room__a_read_message_lets_another_in_within_a_round_trip) {
  Crowd crowd(12, config_of(64));
  crowd.settle(3000 * kMs);  // by now, senders retry rarely
  const i64 received = crowd.pair.stack[1].flow(crowd.flows[0][1])->rx.counters().bytes_received;
  crowd.drops = [](const Wired&) { return false; };
  crowd.read_all(1);
  i64 grown = 0;
  for (const auto& flow : crowd.flows) grown += crowd.pair.stack[1].flow(flow[1])->rx.counters().bytes_received;
  CHECK(grown > 12 * received);
  CHECK(crowd.pair.stack[1].shared().eager_blocks.blocks_in_use() >= 50);
}

TEST(room__words_that_get_lost_delay_and_hang_nothing) {
  Crowd crowd(12, config_of(64));
  Random random(3);
  crowd.drops = [&](const Wired& packet) { return packet.type() == wire::Type::nack && random.next() % 2 == 0; };
  crowd.settle(50 * kMs);
  crowd.read_all(16);
  crowd.settle(60'000 * kMs);
  CHECK_EQUAL(crowd.placed(), u64{12} * 16);
  for (const auto& each : crowd.read) CHECK(each->bytes == crowd.small);
}

TEST(room__no_word_at_all_delays_and_hangs_nothing) {
  Crowd crowd(12, config_of(64));
  crowd.drops = [&](const Wired& packet) { return packet.type() == wire::Type::nack; };
  crowd.settle(50 * kMs);
  crowd.read_all(16);
  crowd.settle(60'000 * kMs);
  CHECK_EQUAL(crowd.placed(), u64{12} * 16);
}

TEST(room__blocks_of_a_closed_connection_go_to_those_that_wait) {
  Crowd crowd(12, config_of(64));
  crowd.settle(3000 * kMs);
  i64 before = 0, after = 0;
  for (std::size_t i = 1; i < crowd.flows.size(); ++i)
    before += crowd.pair.stack[1].flow(crowd.flows[i][1])->rx.counters().bytes_received;
  crowd.pair.stack[1].close_flow(crowd.pair.now_ns, crowd.flows[0][1], Status::cancelled);
  crowd.pair.stack[1].release_flow(crowd.flows[0][1]);
  crowd.settle(kMs);
  for (std::size_t i = 1; i < crowd.flows.size(); ++i)
    after += crowd.pair.stack[1].flow(crowd.flows[i][1])->rx.counters().bytes_received;
  CHECK(after > before);
}

namespace {

// Receives a message through a ring of 32 KB, of which one piece is emptied at regular intervals.
void receive_through_a_ring(const std::function<bool(const Wired&)>& drops, i64 every_ns, bool tells) {
  constexpr u64 kBytes = 1 << 20, kRing = 32 << 10, kPiece = 8 << 10;
  Pair pair(weft::test::shipped_config());
  const std::vector<u8> sent = weft::test::pattern(kBytes, 1);
  std::vector<u8> buffer(kBytes);
  weft::sim::Staging staging(1, kRing, kPiece, kRing);
  ReceiveTicket ticket;
  ticket.message.store(0);
  CHECK_EQUAL(pair.stack[1].post_receive(pair.now_ns, pair.flow[1], {0, nullptr, kBytes, 0, &ticket, staging.stage(0)}),
              Status::ok);
  CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
  FlowSender& sender = pair.stack[0].flow(pair.flow[0])->tx;
  i64 window_least = 1 << 30;
  for (i64 look = 0; pair.received_bytes(1) != kBytes && look < 60'000; ++look) {
    const i64 until_ns = pair.now_ns + every_ns;
    static_cast<void>(pair.run([&] { return pair.now_ns >= until_ns; }, drops));
    pair.now_ns = std::max(pair.now_ns, until_ns);
    for (Stack& each : pair.stack) each.on_timer(pair.now_ns);
    if (staging.may_empty(0)) {
      static_cast<void>(staging.empty(0, buffer.data()));
      if (tells) pair.stack[1].on_staged(pair.flow[1]);
    }
    window_least = std::min(window_least, sender.window().window_bytes());
  }
  while (staging.may_empty(0)) static_cast<void>(staging.empty(0, buffer.data()));
  CHECK_EQUAL(pair.received_bytes(1), kBytes);
  CHECK(buffer == sent);
  if (drops != nullptr) return;
  CHECK_EQUAL(sender.counters().segments_lost, 0);
  CHECK(sender.counters().segments_held > 0);
  CHECK(window_least > 64 << 10);  // nothing was lost, so the window must not shrink
  if (tells) CHECK(sender.counters().segments_resent < static_cast<i64>(kBytes / 1408));
}

}  // namespace

TEST(room__a_full_ring_is_no_loss_and_is_filled_as_it_is_emptied) { receive_through_a_ring(nullptr, 2 * kMs, true); }

TEST(room__a_full_ring_hangs_nothing_though_words_get_lost) {
  receive_through_a_ring(nullptr, 2 * kMs, false);
  Random random(3);
  receive_through_a_ring([&](const Wired&) { return random.next() % 10 == 0; }, 2 * kMs, true);
  receive_through_a_ring([](const Wired& packet) { return packet.type() == wire::Type::nack; }, 2 * kMs, true);
}
