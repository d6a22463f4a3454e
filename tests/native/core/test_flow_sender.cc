// Tests the sending half of a flow alone: which segments are sent, and the effect of acknowledgments and refusals.
#include <deque>
#include <memory>
#include <vector>

#include "native/core/flow_sender.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::Status;
namespace wire = weft::wire;
using Blocked = FlowSender::Blocked;

namespace {

constexpr u16 kPaths = 4, kSegmentBytes = 1400;
constexpr i64 kNow = 1'000'000'000, kMs = 1'000'000;
constexpr i64 kBudget = 1 << 20;
constexpr u64 kPayload = kSegmentBytes - wire::kDataBytes;

// A sender with the policies `fixed`, which are part of the core.
struct Bench {
  explicit Bench(u64 speculative_bytes = kNoCredit, const StackConfig& config = {})
      : shared(config),
        paths(&shared, {}, 0, kPaths, 1 << 20, kPayload),
        sender(&shared, 0, make_flow_config(&counters, speculative_bytes), make_peer_config(), &paths),
        burst(std::make_unique<TxBurst>()) {}
  static FlowConfig make_flow_config(FlowCells* counters, u64 speculative_bytes) {
    FlowConfig config;
    config.remote_token = 7;
    config.speculative_bytes = speculative_bytes;
    config.counters = counters;
    return config;
  }
  static PeerConfig make_peer_config() {
    PeerConfig config;
    config.path_count = kPaths;
    config.segment_bytes = kSegmentBytes;
    return config;
  }
  Status post(u64 number, std::vector<u8> content) {
    const std::vector<u8>& bytes = kept.emplace_back(std::move(content));
    return sender.post(kNow, {number, bytes.data(), bytes.size(), 0, nullptr, nullptr});
  }
  Blocked transmit(i64 now_ns = kNow) {
    *burst = TxBurst{};
    return sender.poll_transmit(now_ns, kBudget, burst.get());
  }
  // The packets of the last burst.
  std::vector<wire::Packet> packets() const {
    std::vector<wire::Packet> found(burst->count);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const wire::Verdict verdict =
          wire::decode(burst->header(i), burst->header_bytes, burst->payload[i].bytes, &found[i]);
      CHECK_EQUAL(verdict, wire::Verdict::ok);
    }
    return found;
  }
  // Transmits until the sender is blocked; returns the number of segments sent.
  std::size_t transmit_all(i64 now_ns = kNow) {
    std::size_t count = 0;
    while (transmit(now_ns) == Blocked::sent) count += burst->count;
    return count;
  }
  bool acknowledge(u64 cumulative_seq, std::vector<u64> bitmap = {}, u64 granted_bytes = kNoCredit) {
    wire::Ack ack;
    ack.cumulative_seq = ack.base_seq = cumulative_seq;
    ack.granted_bytes = granted_bytes;
    ack.bitmap_words = static_cast<u16>(bitmap.size());
    ack.bitmap = reinterpret_cast<const u8*>(bitmap.data());
    return sender.on_ack(kNow + kMs, {}, ack);
  }
  int done() {
    Event event;
    int count = 0;
    while (shared.events.poll(&event)) count += event.kind == Event::Kind::send_done;
    return count;
  }
  std::deque<std::vector<u8>> kept;  // contents of the messages
  FlowCells counters;
  Shared shared;
  PathSet paths;
  FlowSender sender;
  std::unique_ptr<TxBurst> burst;
};

}  // namespace

TEST(flow_sender__without_a_message_it_is_idle) {
  Bench at;
  CHECK(at.transmit() == Blocked::idle);
  CHECK(!at.sender.has_outstanding());
  CHECK_EQUAL(at.sender.check_ns(), kNever);
}

TEST(flow_sender__a_message_leaves_in_segments_and_is_done_when_all_are_acknowledged) {
  Bench at;
  const std::vector<u8> bytes(3 * kPayload + 10, 1);
  CHECK_EQUAL(at.post(0, bytes), Status::ok);
  CHECK(at.transmit() == Blocked::sent);
  const std::vector<wire::Packet> sent = at.packets();
  CHECK(!sent.empty());
  u64 end = 0;
  for (const wire::Packet& packet : sent) {
    CHECK_EQUAL(packet.data.offset_bytes, end);
    CHECK_EQUAL(packet.data.message_bytes, bytes.size());
    end += packet.common.body_bytes;
  }
  CHECK_EQUAL(sent.size() + at.transmit_all(), std::size_t{4});
  CHECK_EQUAL(at.sender.inflight_bytes(), static_cast<i64>(bytes.size()));
  CHECK(at.acknowledge(3));
  CHECK_EQUAL(at.done(), 0);
  CHECK(at.acknowledge(4));
  CHECK_EQUAL(at.done(), 1);
  CHECK_EQUAL(at.sender.inflight_bytes(), 0);
  CHECK(!at.sender.has_outstanding());
}

TEST(flow_sender__an_empty_message_is_one_empty_segment) {
  Bench at;
  CHECK_EQUAL(at.post(0, {}), Status::ok);
  CHECK(at.transmit() == Blocked::sent);
  CHECK_EQUAL(at.burst->count, 1);
  CHECK_EQUAL(at.burst->payload[0].bytes, 0u);
  CHECK(at.acknowledge(1));
  CHECK_EQUAL(at.done(), 1);
}

TEST(flow_sender__an_acknowledgment_of_what_was_not_sent_changes_nothing) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(2 * kPayload)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{2});
  CHECK(!at.acknowledge(3));
  CHECK(!at.acknowledge(0, {0b100}));
  wire::Ack ack;
  wire::Common common;
  common.path = kPaths;
  CHECK(!at.sender.on_ack(kNow + kMs, common, ack));
  CHECK_EQUAL(at.sender.inflight_bytes(), static_cast<i64>(2 * kPayload));
  CHECK_EQUAL(at.done(), 0);
}

TEST(flow_sender__bits_acknowledge_segments_out_of_order) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(4 * kPayload)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{4});
  CHECK(at.acknowledge(1, {0b110}));  // acknowledges segments 2 and 3
  CHECK_EQUAL(at.sender.inflight_bytes(), static_cast<i64>(kPayload));
  CHECK_EQUAL(at.done(), 0);
  CHECK(at.acknowledge(4));
  CHECK_EQUAL(at.done(), 1);
}

TEST(flow_sender__a_timeout_sends_the_same_bytes_again_under_the_same_number) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(100, 5)), Status::ok);
  CHECK(at.transmit() == Blocked::sent);
  const wire::Packet first = at.packets().front();
  i64 now_ns = kNow;
  for (int i = 0; i < 100 && !at.sender.has_lost(); ++i) {
    CHECK(at.sender.check_ns() != kNever);
    now_ns = std::max(now_ns, at.sender.check_ns());
    at.sender.on_timer(now_ns);
  }
  CHECK(at.sender.has_lost());
  CHECK(at.transmit(now_ns) == Blocked::sent);
  const wire::Packet again = at.packets().front();
  CHECK_EQUAL(again.data.seq, first.data.seq);
  CHECK_EQUAL(again.data.offset_bytes, first.data.offset_bytes);
  CHECK(again.data.sent_ns > first.data.sent_ns);
  CHECK_EQUAL(at.burst->payload[0].data, at.kept.front().data());
  CHECK_EQUAL(at.counters.segments_resent, 1);
}

TEST(flow_sender__stops_at_its_window_and_goes_on_when_bytes_are_acknowledged) {
  StackConfig config;
  config.window_bytes_max = 10'000;
  Bench at(kNoCredit, config);
  for (u64 i = 0; i < 4; ++i) CHECK_EQUAL(at.post(i, std::vector<u8>(5 * kPayload)), Status::ok);
  const i64 window_bytes = at.sender.window().window_bytes();
  const std::size_t sent = at.transmit_all();
  CHECK(at.transmit() == Blocked::window);
  CHECK_EQUAL(static_cast<i64>(sent), window_bytes / static_cast<i64>(kPayload));
  CHECK(at.acknowledge(2));
  CHECK_EQUAL(at.transmit_all(), std::size_t{2});
}

TEST(flow_sender__a_long_message_waits_for_the_advertisement_of_its_receive) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(1 << 20)), Status::ok);
  CHECK(at.transmit() == Blocked::advert);
  CHECK_EQUAL(at.sender.inflight_bytes(), 0);
}

TEST(flow_sender__without_credit_it_requests_some_and_waits) {
  Bench at(0);
  CHECK_EQUAL(at.post(0, std::vector<u8>(kPayload)), Status::ok);
  CHECK(at.transmit() == Blocked::credit);
  wire::Demand demand;
  CHECK(at.sender.poll_demand(kNow, &demand));
  CHECK_EQUAL(demand.demand_bytes, kPayload);
  CHECK(!at.sender.poll_demand(kNow, &demand));
  CHECK(at.sender.demand_ns() > kNow);
  CHECK(at.acknowledge(0, {}, kPayload));
  CHECK_EQUAL(at.sender.demand_ns(), kNever);
  CHECK(at.transmit() == Blocked::sent);
}

TEST(flow_sender__the_closing_peers_last_position_ends_what_is_below_it) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(2 * kPayload)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{2});
  CHECK(!at.sender.on_final(kNow + kMs, 3));
  CHECK(at.sender.on_final(kNow + kMs, 2));
  CHECK_EQUAL(at.done(), 1);
}

TEST(flow_sender__abandoned_it_holds_nothing) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(2 * kPayload)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{2});
  at.sender.abandon();
  CHECK(!at.sender.has_outstanding());
  CHECK(!at.sender.has_inflight());
  CHECK_EQUAL(at.sender.check_ns(), kNever);
  CHECK(at.transmit() == Blocked::idle);
  CHECK_EQUAL(at.done(), 0);
}

TEST(flow_sender__frees_its_storage_when_idle_and_takes_it_again) {
  Bench at;
  CHECK_EQUAL(at.post(0, std::vector<u8>(100)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{1});
  at.sender.release_idle();
  CHECK(at.sender.bytes_held() != 0);  // memory is held while segments are in flight
  CHECK(at.acknowledge(1));
  at.sender.release_idle();
  CHECK_EQUAL(at.sender.bytes_held(), std::size_t{0});
  CHECK_EQUAL(at.post(1, std::vector<u8>(100)), Status::ok);
  CHECK_EQUAL(at.transmit_all(), std::size_t{1});
}
