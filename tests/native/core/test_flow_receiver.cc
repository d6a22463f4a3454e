// Tests the receiving half of a flow alone: the outcome of each segment, and the packets that answer it.
#include <cstring>
#include <memory>
#include <vector>

#include "native/core/flow_receiver.h"
#include "native/wire/crc32c.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::Status;
namespace wire = weft::wire;
using Outcome = FlowReceiver::Outcome;

namespace {

constexpr u16 kPaths = 4;
constexpr i64 kNow = 1'000'000'000, kMs = 1'000'000;

struct Bench {
  explicit Bench(const StackConfig& config = {})
      : shared(config),
        paths(&shared, {}, 0, kPaths, 1 << 20, 1400),
        flow_config(make_flow_config(&counters)),
        receiver(&shared, {}, nullptr, 0, flow_config, make_peer_config(), &paths),
        burst(std::make_unique<TxBurst>()) {}
  static FlowConfig make_flow_config(FlowCells* counters) {
    FlowConfig config;
    config.counters = counters;
    return config;
  }
  static PeerConfig make_peer_config() {
    PeerConfig config;
    config.path_count = kPaths;
    return config;
  }
  Outcome data(u64 seq, u64 message, u64 offset, const std::vector<u8>& payload, u64 message_bytes, u8 path = 0,
               RxDatagram::Body body = RxDatagram::Body::here) {
    wire::Packet packet;
    packet.common.type = wire::Type::data;
    packet.common.path = path;
    packet.common.flags = flags;
    packet.data.seq = seq;
    packet.data.sent_ns = kNow - 1'000 + static_cast<i64>(seq);
    packet.data.message = static_cast<u32>(message);
    packet.data.offset_bytes = offset;
    packet.data.message_bytes = message_bytes;
    packet.data.payload_crc = crc;
    RxDatagram datagram;
    datagram.payload = payload.data();
    datagram.payload_bytes = static_cast<u32>(payload.size());
    datagram.body = body;
    shared.host.on_datagram(kNow, 0);
    return receiver.on_data(kNow, packet, datagram);
  }
  Status post(u64 message, std::vector<u8>* buffer, ReceiveTicket* ticket) {
    ticket->message.store(message);
    return receiver.post(kNow, {message, buffer->data(), buffer->size(), 0, ticket, nullptr});
  }
  // The next control packet; if none is due, a packet of type data.
  wire::Packet answer(i64 now_ns = kNow) {
    wire::Packet packet;
    packet.common.type = wire::Type::data;
    if (!receiver.poll_transmit(now_ns, 1, kMs, burst.get())) return packet;
    const wire::Verdict verdict = wire::decode(burst->headers, burst->header_bytes, 0, &packet);
    CHECK_EQUAL(verdict, wire::Verdict::ok);
    return packet;
  }
  int placed() {
    int count = 0;
    for (Event event; shared.events.poll(&event);) count += event.kind == Event::Kind::stripe_placed ? 1 : 0;
    return count;
  }

  FlowCells counters;
  Shared shared;
  PathSet paths;
  FlowConfig flow_config;
  FlowReceiver receiver;
  std::unique_ptr<TxBurst> burst;
  u8 flags = 0;
  u32 crc = 0;
};

std::vector<u8> bytes_of(std::size_t count, u8 value) { return std::vector<u8>(count, value); }

}  // namespace

TEST(flow_receiver__a_message_is_placed_and_acknowledged_at_once) {
  Bench bench;
  std::vector<u8> buffer(200);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.data(1, 0, 100, bytes_of(100, 2), 200, 3), Outcome::taken);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 200, 2), Outcome::taken);
  CHECK_EQUAL(bench.placed(), 1);
  CHECK_EQUAL(static_cast<int>(buffer[99]), 1);
  CHECK_EQUAL(static_cast<int>(buffer[100]), 2);
  const wire::Packet ack = bench.answer();
  CHECK_EQUAL(ack.common.type, wire::Type::ack);
  CHECK_EQUAL(ack.ack.cumulative_seq, 2u);
  CHECK_EQUAL(ack.ack.received_bytes, 200u);
  CHECK_EQUAL(static_cast<int>(ack.ack.report_count), 2);
}

TEST(flow_receiver__a_gap_shows_in_the_bitmap) {
  Bench bench;
  std::vector<u8> buffer(300);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.data(2, 0, 200, bytes_of(100, 3), 300), Outcome::taken);
  const wire::Packet ack = bench.answer(kNow + kMs);
  CHECK_EQUAL(ack.ack.cumulative_seq, 0u);
  CHECK_EQUAL(ack.ack.bitmap_words, 1u);
  u64 word = 0;
  std::memcpy(&word, ack.ack.bitmap, sizeof word);
  CHECK_EQUAL(word, u64{1} << 2);
}

TEST(flow_receiver__a_duplicate_changes_nothing_and_is_acknowledged_again) {
  Bench bench;
  std::vector<u8> buffer(100);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 100), Outcome::taken);
  static_cast<void>(bench.answer());
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 9), 100), Outcome::duplicate);
  CHECK_EQUAL(static_cast<int>(buffer[0]), 1);
  CHECK_EQUAL(bench.placed(), 1);
  const wire::Packet ack = bench.answer();
  CHECK_EQUAL(ack.common.type, wire::Type::ack);
  CHECK_EQUAL(ack.ack.duplicate_segments, 1u);
}

// After a damaged segment, the undamaged segment with the same sequence number must be accepted.
TEST(flow_receiver__a_damaged_segment_counts_as_not_arrived) {
  Bench bench;
  std::vector<u8> buffer(100);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  const std::vector<u8> payload = bytes_of(100, 7);
  bench.flags = wire::kFlagPayloadCrc;
  bench.crc = wire::crc32c(0, payload.data(), payload.size()) ^ 1;
  CHECK_EQUAL(bench.data(0, 0, 0, payload, 100), Outcome::bad_crc);
  CHECK_EQUAL(bench.placed(), 0);
  bench.crc ^= 1;
  CHECK_EQUAL(bench.data(0, 0, 0, payload, 100), Outcome::taken);
  CHECK_EQUAL(bench.placed(), 1);
  CHECK(buffer == payload);
}

TEST(flow_receiver__a_receive_that_is_too_short_fails_the_flow) {
  Bench bench;
  std::vector<u8> buffer(50);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 100), Outcome::too_long);
}

TEST(flow_receiver__a_trimmed_segment_is_reported_with_its_send_time) {
  Bench bench;
  CHECK_EQUAL(bench.data(4, 0, 0, {}, 100'000, 3, RxDatagram::Body::trimmed), Outcome::trimmed);
  const wire::Packet nack = bench.answer();
  CHECK_EQUAL(nack.common.type, wire::Type::nack);
  CHECK_EQUAL(nack.nack.kind, wire::Nack::Kind::trimmed);
  CHECK_EQUAL(nack.nack.count, 1u);
  CHECK_EQUAL(nack.nack.entry(0).seq, 4u);
  CHECK_EQUAL(nack.nack.entry(0).sent_ns, kNow - 1'000 + 4);
}

// If other flows hold all blocks, the sender gets a NACK of kind no_room, and one of kind room when a block is free.
TEST(flow_receiver__an_eager_message_without_a_block_waits) {
  StackConfig config;
  config.eager_blocks = 1;
  Bench bench(config);
  void* const block = bench.shared.eager_blocks.take();
  CHECK(block != nullptr);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 100), Outcome::no_block);
  const wire::Packet refusal = bench.answer();
  CHECK_EQUAL(refusal.nack.kind, wire::Nack::Kind::no_room);
  CHECK(bench.receiver.wants_block());
  bench.shared.eager_blocks.give(block);
  bench.receiver.offer_room();
  CHECK_EQUAL(bench.answer().nack.kind, wire::Nack::Kind::room);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 100), Outcome::taken);
}

TEST(flow_receiver__segments_from_nowhere_are_refused) {
  Bench bench;
  std::vector<u8> buffer(100);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  CHECK_EQUAL(bench.data(0, 0, 0, bytes_of(100, 1), 100, kPaths), Outcome::refused);        // there is no such path
  CHECK_EQUAL(bench.data(0, 0, 50, bytes_of(100, 1), 100), Outcome::refused);               // beyond its message
  CHECK_EQUAL(bench.data(kWindowSegments, 0, 0, bytes_of(100, 1), 100), Outcome::refused);  // beyond the window
  CHECK_EQUAL(bench.data(0, 5'000, 0, bytes_of(100, 1), 100), Outcome::refused);            // beyond the eager slots
  CHECK_EQUAL(bench.placed(), 0);
  CHECK_EQUAL(static_cast<int>(buffer[0]), 0);
}

// If memory runs out, the segment counts as lost and is resent; the peer is not at fault.
TEST(flow_receiver__without_memory_a_segment_counts_as_missing) {
  Bench bench;
  std::vector<u8> buffer(300);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  std::vector<void*> taken;
  while (void* const one = bench.shared.bitmaps.take()) taken.push_back(one);
  CHECK_EQUAL(bench.data(2, 0, 200, bytes_of(100, 1), 300), Outcome::missing);
  for (void* const one : taken) bench.shared.bitmaps.give(one);
  CHECK_EQUAL(bench.data(2, 0, 200, bytes_of(100, 1), 300), Outcome::taken);
}

TEST(flow_receiver__a_large_receive_is_advertised_until_it_is_confirmed) {
  Bench bench;
  std::vector<u8> buffer(100'000);
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.post(0, &buffer, &ticket), Status::ok);
  const wire::Packet advert = bench.answer();
  CHECK_EQUAL(advert.common.type, wire::Type::advert);
  CHECK_EQUAL(advert.advert.count, 1u);
  CHECK_EQUAL(advert.advert.entry(0).capacity_bytes, 100'000u);
  const i64 again_ns = bench.receiver.poll_timeout();
  CHECK(again_ns > kNow);
  bench.receiver.on_timer(again_ns);
  CHECK_EQUAL(bench.answer(again_ns).common.type, wire::Type::advert);
  bench.receiver.on_advert_ack(again_ns, {1});
  CHECK_EQUAL(bench.receiver.poll_timeout(), kNever);
}
