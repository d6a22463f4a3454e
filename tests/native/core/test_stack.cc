// Tests P-6 for the stack: malformed, stale, replayed and foreign packets change only counters. Also tests the rules of
// acknowledgment: nothing unsent can be acknowledged, and the acknowledgment of a full window takes several packets.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "native/wire/crc32c.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::Pair;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

constexpr u64 kBytes = 60'000;

// All state of an end that a packet could change, except counters.
std::string state_of(Pair& pair, int end) {
  Flow& flow = *pair.stack[end].flow(pair.flow[end]);
  std::ostringstream out;
  out << flow.tx.has_outstanding() << flow.tx.has_inflight() << flow.tx.has_lost() << ' ' << flow.tx.known_adverts()
      << ' ' << flow.tx.check_ns() << ' ' << flow.tx.demand_ns() << ' ' << flow.tx.window().window_bytes() << ' '
      << flow.tx.counters().bytes_sent << '|' << flow.rx.cumulative_seq() << ' ' << flow.rx.ack_ns() << ' '
      << flow.rx.counters().bytes_received << '|' << flow.is_open() << flow.failed << flow.in_control
      << flow.confirm_advert << flow.confirm_close << ' ' << flow.active_ns << '|' << pair.stack[end].storage_bytes()
      << ' ' << pair.stack[end].poll_timeout() << '|';
  const Peer& peer = *pair.stack[end].peer(pair.peer[end]);
  out << peer.in_control << peer.poll_timeout();
  for (std::size_t i = 0; i < peer.paths().count(); ++i) {
    const PathState& path = peer.paths().path(i);
    out << ' ' << path.inflight_bytes << ',' << path.heard_ns << ',' << path.usable << ',' << path.timeouts << ','
        << path.rtt.smoothed_ns();
  }
  return out.str();
}

// A pair of stacks in the middle of a transfer: end 0 has segments in flight, some of which have arrived.
struct Bench {
  Bench() : pair(config()), sent(weft::test::pattern(kBytes, 1)), buffer(kBytes) {
    CHECK(pair.opened);
    CHECK_EQUAL(pair.receive(1, buffer.data(), kBytes, &ticket), Status::ok);
    CHECK_EQUAL(pair.send(0, sent.data(), kBytes), Status::ok);
    pair.exchange();
    packets = pair.take(0);
    CHECK(packets.size() > 20);
    pair.now_ns += 20'000;
    for (std::size_t i = 2; i < 12; ++i) pair.give(packets[i]);
    acks = pair.take(1);
    pair.now_ns += 20'000;
    pair.give(acks.front());
    static_cast<void>(pair.take(0));
  }
  static StackConfig config() {
    StackConfig config;
    config.payload_crc = true;
    return config;
  }
  // Checks that a packet changes only one counter of refusals at either end. It may write damaged bytes at its own
  // position in the buffer, which do not count.
  void refuses(int end, const Wired& packet, weft::telemetry::Cell EngineCells::* counter, std::size_t spoils_from = 0,
               std::size_t spoils_bytes = 0) {
    const std::string before = state_of(pair, end);
    std::vector<u8> bytes = buffer;
    const i64 count = pair.stack[end].counters().*counter;
    pair.now_ns += 1000;
    pair.give(packet);
    CHECK_EQUAL(state_of(pair, end), before);
    CHECK_EQUAL(pair.stack[end].counters().*counter, count + 1);
    if (spoils_bytes != 0) std::copy_n(&buffer[spoils_from], spoils_bytes, &bytes[spoils_from]);
    CHECK(buffer == bytes);
    Event event;
    CHECK(!pair.stack[end].poll_event(&event));
  }
  wire::Common common(int to) const {
    wire::Common common;
    common.token = Pair::kToken[to];
    common.flow = pair.flow[to];
    return common;
  }
  void finish() {
    CHECK(pair.run([&] { return pair.received_bytes(1) == sent.size(); }));
    CHECK(buffer == sent);
  }

  Pair pair;
  std::vector<u8> sent, buffer;
  ReceiveTicket ticket;
  std::vector<Wired> packets, acks;
};

Wired ack_of(const Bench& bench, const wire::Ack& ack, const std::vector<u64>& words = {},
             const std::vector<wire::PathReport>& reports = {}, u8 path = 0) {
  Wired packet;
  packet.to = 0;
  packet.header.resize(wire::kControlBytesMax);
  wire::Common common = bench.common(0);
  common.path = path;
  wire::Ack copy = ack;
  copy.granted_bytes = kNoCredit;
  copy.bitmap_words = static_cast<u16>(words.size());
  copy.report_count = static_cast<u8>(reports.size());
  packet.header.resize(wire::encode_ack(packet.header.data(), common, copy, reports.data(), words.data()));
  return packet;
}

Wired data_of(const Bench& bench, const wire::Data& data, std::size_t payload_bytes, u8 path = 0) {
  Wired packet;
  packet.to = 1;
  packet.header.resize(wire::kDataBytes);
  packet.payload.resize(payload_bytes, 0xBD);
  wire::Common common = bench.common(1);
  common.path = path;
  common.body_bytes = static_cast<u16>(payload_bytes);
  wire::encode_data(packet.header.data(), common, data);
  return packet;
}

}  // namespace

TEST(stack__malformed_packets_change_nothing) {
  Bench bench;
  Wired packet = bench.packets[15];
  packet.header[0] ^= 1;
  bench.refuses(1, packet, &EngineCells::bad_magic);
  packet = bench.packets[15];
  packet.header[2] ^= 1;
  bench.refuses(1, packet, &EngineCells::bad_version);
  packet = bench.packets[15];
  packet.header[30] ^= 1;
  bench.refuses(1, packet, &EngineCells::bad_crc);
  packet = bench.packets[15];
  packet.payload[100] ^= 1;
  wire::Packet read;
  CHECK(wire::decode(packet.header.data(), packet.header.size(), packet.payload.size(), &read) == wire::Verdict::ok);
  bench.refuses(1, packet, &EngineCells::bad_crc, read.data.offset_bytes, packet.payload.size());
  // If the intact segment has arrived, a damaged duplicate writes nothing.
  packet = bench.packets[5];
  packet.payload[100] ^= 1;
  bench.refuses(1, packet, &EngineCells::bad_crc);
  packet = bench.packets[15];
  packet.payload.pop_back();
  bench.refuses(1, packet, &EngineCells::malformed);
  for (std::size_t bytes = 0; bytes < wire::kDataBytes; ++bytes) {
    packet = bench.packets[15];
    packet.header.resize(bytes);
    bench.refuses(1, packet, &EngineCells::malformed);
  }
  bench.finish();
}

TEST(stack__foreign_packets_change_nothing) {
  Bench bench;
  wire::Common common = bench.common(1);
  const auto close_with = [&](const wire::Common& with) {
    Wired packet;
    packet.to = 1;
    packet.header.resize(wire::kCloseBytes);
    wire::Common typed = with;
    typed.type = wire::Type::close;
    wire::encode_close(packet.header.data(), typed, {14, 0});
    return packet;
  };
  common.token ^= 1;
  bench.refuses(1, close_with(common), &EngineCells::stray);
  common = bench.common(1);
  common.flow += 1;
  bench.refuses(1, close_with(common), &EngineCells::stray);
  common.flow = 0xFFFF'FFFFu;
  bench.refuses(1, close_with(common), &EngineCells::stray);
  common = bench.common(1);
  common.path = 4;
  bench.refuses(1, close_with(common), &EngineCells::malformed);
  for (const wire::Type type : {wire::Type::probe, wire::Type::probe_reply}) {
    Wired packet;
    packet.to = 1;
    packet.header.resize(wire::kProbeBytes);
    common = bench.common(1);  // the token of a flow, not that of the peer
    common.type = type;
    wire::encode_probe(packet.header.data(), common, {1, 1});
    bench.refuses(1, packet, &EngineCells::stray);
    common.token = Pair::kPeerToken[1];
    common.path = 4;
    wire::encode_probe(packet.header.data(), common, {1, 1});
    bench.refuses(1, packet, &EngineCells::malformed);
  }
  bench.finish();
}

TEST(stack__an_acknowledgment_of_what_was_never_sent_is_refused) {
  Bench bench;
  const u64 next = (kBytes + 1407) / 1408;
  wire::Ack ack;
  ack.cumulative_seq = ack.base_seq = next + 1;
  bench.refuses(0, ack_of(bench, ack), &EngineCells::malformed);
  ack.cumulative_seq = 0;
  ack.base_seq = next + 1;
  bench.refuses(0, ack_of(bench, ack, {1}), &EngineCells::malformed);
  ack.base_seq = 0;
  bench.refuses(0, ack_of(bench, ack, {u64{1} << next}), &EngineCells::malformed);
  bench.refuses(0, ack_of(bench, ack, {0, 0, 1}), &EngineCells::malformed);
  ack.cumulative_seq = 1;
  bench.refuses(0, ack_of(bench, ack), &EngineCells::malformed);
  const auto refuses_report = [&](const wire::PathReport& report) {
    bench.refuses(0, ack_of(bench, {}, {}, {report}), &EngineCells::malformed);
    bench.refuses(0, ack_of(bench, {}, {}, {{}, report}), &EngineCells::malformed);
  };
  refuses_report({bench.pair.now_ns + 1'000'000'000, 0, 0, 0, 0});
  refuses_report({std::numeric_limits<i64>::max(), 0, 0, 0, 0});
  refuses_report({std::numeric_limits<i64>::min(), 0, 0, 0, 0});
  refuses_report({-1, 0, 0, 0, 0});
  refuses_report({0, 0, 0, 0, 4});
  bench.refuses(0, ack_of(bench, {}, {}, {}, 9), &EngineCells::malformed);
  bench.finish();
}

TEST(stack__data_for_no_message_is_refused) {
  Bench bench;
  wire::Data data;
  data.seq = 100;
  data.message_bytes = kBytes;
  data.offset_bytes = kBytes - 10;
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.offset_bytes = ~u64{0} - 5;
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.offset_bytes = 0;
  data.message_bytes = kBytes - 1;  // differs from the message's size in other segments
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.message_bytes = ~u64{0};
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.message_bytes = kBytes;
  data.message = 500;  // number too far ahead for an eager message
  data.message_bytes = 11;
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.message = 0xFFFF'FFFFu;  // a number before the first message
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.message = 0;
  data.message_bytes = kBytes;
  data.seq = bench.pair.stack[1].flow(bench.pair.flow[1])->rx.cumulative_seq() + kWindowSegments;
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.seq = ~u64{0};
  bench.refuses(1, data_of(bench, data, 11), &EngineCells::malformed);
  data.seq = 100;
  bench.refuses(1, data_of(bench, data, 0), &EngineCells::malformed);
  bench.finish();
}

TEST(stack__replayed_packets_complete_nothing_and_write_nothing) {
  Bench bench;
  std::vector<Wired> seen;
  CHECK(bench.pair.run([&] { return bench.pair.received_bytes(1) == kBytes; },
                       [&](const Wired& packet) {
                         seen.push_back(packet);
                         return false;
                       }));
  for (const Wired& packet : bench.packets) seen.push_back(packet);
  CHECK_EQUAL(bench.pair.events(1, Event::Kind::stripe_placed), 1);
  for (int i = 0; i < 40; ++i) bench.pair.exchange();
  CHECK_EQUAL(bench.pair.events(0, Event::Kind::send_done), 1);
  // The message is complete, and the caller owns the buffer again.
  std::fill(bench.buffer.begin(), bench.buffer.end(), u8{0x5A});
  const i64 bytes_sent = bench.pair.stack[0].flow(bench.pair.flow[0])->tx.counters().bytes_sent;
  Random random(9);
  for (int i = 0; i < 3000; ++i) {
    bench.pair.now_ns += 1000;
    bench.pair.give(seen[random.next() % seen.size()]);
    if (i % 16 == 0) bench.pair.exchange();
  }
  for (int i = 0; i < 50; ++i) bench.pair.exchange();
  CHECK(std::all_of(bench.buffer.begin(), bench.buffer.end(), [](u8 byte) { return byte == 0x5A; }));
  for (int end = 0; end < 2; ++end) {
    Event event;
    CHECK(!bench.pair.stack[end].poll_event(&event));
    CHECK(bench.pair.stack[end].flow(bench.pair.flow[end])->is_open());
  }
  CHECK_EQUAL(bench.pair.stack[0].flow(bench.pair.flow[0])->tx.counters().bytes_sent, bytes_sent);
  CHECK_EQUAL(bench.pair.stack[1].flow(bench.pair.flow[1])->rx.counters().bytes_received, static_cast<i64>(kBytes));
  // The flow still works.
  ReceiveTicket ticket;
  CHECK_EQUAL(bench.pair.receive(1, bench.buffer.data(), kBytes, &ticket), Status::ok);
  CHECK_EQUAL(bench.pair.send(0, bench.sent.data(), kBytes), Status::ok);
  CHECK(bench.pair.run([&] { return bench.pair.received_bytes(1) == 2 * kBytes; }));
  CHECK(bench.buffer == bench.sent);
}

namespace {

void acknowledge_a_full_window(u16 segment_bytes) {
  const std::size_t payload_bytes = wire::segment_payload_bytes(segment_bytes);
  Pair pair(StackConfig{}, 16, segment_bytes);  // 16 paths, so that their room does not limit the flow
  const std::vector<u8> sent = weft::test::pattern(payload_bytes * (kWindowSegments + 100), 2);
  std::vector<u8> buffer(sent.size());
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(1, buffer.data(), buffer.size(), &ticket), Status::ok);
  CHECK_EQUAL(pair.send(0, sent.data(), sent.size()), Status::ok);
  pair.exchange();
  const std::vector<Wired> packets = pair.take(0);
  std::size_t data = 0;
  for (const Wired& packet : packets) {
    if (packet.type() == wire::Type::data && data++ != 0) pair.give(packet);  // the first segment is lost
  }
  CHECK(data > 64 * wire::ack_words_max(segment_bytes));
  CHECK(segment_bytes != 128 || data == kWindowSegments);
  pair.now_ns += 1000;
  u64 covered_end = 0;
  int full = 0;
  for (const Wired& packet : pair.take(1)) {
    wire::Packet decoded;
    CHECK_EQUAL(wire::decode(packet.header.data(), packet.header.size(), 0, &decoded), wire::Verdict::ok);
    if (decoded.common.type == wire::Type::ack) {
      full += decoded.ack.bitmap_words == wire::ack_words_max(segment_bytes) ? 1 : 0;
      // ack_words_max() allows 440 bytes if segments are shorter.
      CHECK(packet.header.size() <= std::max<std::size_t>(segment_bytes, 440));
      covered_end = std::max(covered_end, decoded.ack.base_seq + 64u * decoded.ack.bitmap_words);
      CHECK_EQUAL(decoded.ack.cumulative_seq, 0u);
    }
    pair.give(packet);
  }
  CHECK(full >= 1);
  CHECK_EQUAL(covered_end, data);
  CHECK_EQUAL(pair.stack[0].flow(pair.flow[0])->tx.counters().bytes_sent, static_cast<i64>(payload_bytes * (data - 1)));
  CHECK(pair.run([&] { return pair.received_bytes(1) == sent.size(); }));
  CHECK(buffer == sent);
  CHECK_EQUAL(pair.stack[0].flow(pair.flow[0])->tx.counters().segments_resent, 1);
}

}  // namespace

// Also tests that each acknowledgment is no longer than a segment, because UD queue pairs can't send more.
TEST(stack__a_full_window_is_acknowledged_in_several_packets) {
  for (const u16 segment_bytes : std::initializer_list<u16>{128, 576}) acknowledge_a_full_window(segment_bytes);
}

TEST(stack__a_dead_peer_fails_the_flow_in_bounded_time) {
  Bench bench;
  const i64 start_ns = bench.pair.now_ns;
  bool failed = false;
  CHECK(bench.pair.run(
      [&] {
        failed = failed || bench.pair.events(0, Event::Kind::flow_failed) != 0;
        return failed;
      },
      [](const Wired&) { return true; }));
  CHECK(bench.pair.now_ns - start_ns <= StackConfig{}.peer_silence_ns + 1'000'000'000);
}

TEST(stack__both_ends_close_though_half_of_all_packets_are_lost) {
  Bench bench;
  bench.finish();
  bench.pair.stack[0].close_flow(bench.pair.now_ns, bench.pair.flow[0], Status::cancelled);
  Random random(4);
  bool closed[2] = {};
  CHECK(bench.pair.run(
      [&] {
        for (int end = 0; end < 2; ++end) {
          for (Event event; bench.pair.stack[end].poll_event(&event);)
            closed[end] = closed[end] || event.kind == Event::Kind::flow_closed;
        }
        return closed[0] && closed[1];
      },
      [&](const Wired&) { return random.next() % 2 == 0; }));
}

TEST(stack__a_lost_tail_is_found_by_a_probe_long_before_the_timeout) {
  StackConfig config = weft::test::shipped_config();
  config.rto_ns_min = 50'000'000;
  Pair pair(config, 1);
  const std::vector<u8> sent = weft::test::pattern(200'000, 3);
  std::vector<u8> buffer(sent.size());
  ReceiveTicket warm, ticket;
  CHECK_EQUAL(pair.receive(1, buffer.data(), buffer.size(), &warm), Status::ok);
  CHECK_EQUAL(pair.send(0, sent.data(), sent.size()), Status::ok);
  int done = 0;
  const auto finished = [&](int count) {
    return [&, count] { return (done += pair.events(0, Event::Kind::send_done)) >= count; };
  };
  CHECK(pair.run(finished(1)));  // now the path's RTT is measured
  CHECK_EQUAL(pair.receive(1, buffer.data(), 6000, &ticket), Status::ok);
  CHECK_EQUAL(pair.send(0, sent.data(), 6000), Status::ok);
  const i64 start_ns = pair.now_ns;
  int dropped = 0;
  const auto drops = [&](const Wired& packet) {
    return packet.type() == wire::Type::data && ++dropped > 2 && dropped <= 5;  // drop the last three of five
  };
  CHECK(pair.run(finished(2), drops));
  CHECK(dropped >= 5);
  CHECK(pair.now_ns - start_ns < 1'000'000);
  CHECK_EQUAL(pair.stack[0].flow(pair.flow[0])->tx.counters().segments_resent, 3);
  CHECK(std::equal(sent.begin(), sent.begin() + 6000, buffer.begin()));
}

// The lost segments are sent before any RTT sample. They must be resent soon after the probes that are sent when a path
// opens have measured the RTT, not only after the first timeout.
TEST(stack__a_first_burst_that_is_lost_is_missed_once_its_path_is_measured) {
  StackConfig config = weft::test::shipped_config();
  config.rto_ns_min = 50'000'000;
  Pair pair(config, 1);
  const std::vector<u8> sent = weft::test::pattern(6000, 3);
  std::vector<u8> buffer(sent.size());
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(1, buffer.data(), buffer.size(), &ticket), Status::ok);
  CHECK_EQUAL(pair.send(0, sent.data(), sent.size()), Status::ok);
  const i64 start_ns = pair.now_ns;
  int dropped = 0;
  CHECK(pair.run([&] { return pair.received_bytes(1) == sent.size(); },
                 [&](const Wired& packet) { return packet.type() == wire::Type::data && dropped++ < 5; }));
  CHECK_EQUAL(dropped, 10);
  CHECK(pair.now_ns - start_ns < 1'000'000);
  CHECK(buffer == sent);
}

// A lost empty message is resent only after the timeout, because it adds no bytes in flight to a path.
TEST(stack__a_first_message_of_no_bytes_is_missed_after_the_least_timeout) {
  StackConfig config = weft::test::shipped_config();
  config.rto_ns_min = 50'000'000;
  Pair pair(config, 1);
  ReceiveTicket ticket;
  CHECK_EQUAL(pair.receive(1, nullptr, 0, &ticket), Status::ok);
  CHECK_EQUAL(pair.send(0, nullptr, 0), Status::ok);
  const i64 start_ns = pair.now_ns;
  int seen = 0, done = 0;
  CHECK(pair.run([&] { return (done += pair.events(0, Event::Kind::send_done)) != 0; },
                 [&](const Wired& packet) { return packet.type() == wire::Type::data && seen++ == 0; }));
  CHECK_EQUAL(seen, 2);
  CHECK(pair.now_ns - start_ns < 2 * config.rto_ns_min);
}

TEST(stack__who_is_granted_nothing_asks_ever_more_seldom) {
  Pair pair(weft::test::shipped_config(), 1);
  u32 starved = 0;
  CHECK_EQUAL(pair.stack[0].reserve_flow(&starved), Status::ok);
  FlowConfig config;
  config.peer = pair.peer[0];
  config.remote_flow = pair.flow[1];  // the receiver of this flow has no credit policy
  config.remote_token = Pair::kToken[1];
  config.local_token = 0x9999;
  config.speculative_bytes = 0;
  CHECK_EQUAL(pair.stack[0].open_flow(pair.now_ns, starved, config), Status::ok);
  const std::vector<u8> sent = weft::test::pattern(6000, 3);
  CHECK_EQUAL(pair.stack[0].post_send(pair.now_ns, starved, {0, sent.data(), sent.size(), 0, nullptr, nullptr}),
              Status::ok);
  std::vector<i64> asked_ns;
  const i64 end_ns = pair.now_ns + 500'000'000;
  CHECK(pair.run([&] { return pair.now_ns >= end_ns; },
                 [&](const Wired& packet) {
                   CHECK(packet.type() != wire::Type::data);
                   if (packet.type() == wire::Type::demand) asked_ns.push_back(pair.now_ns);
                   return false;
                 }));
  CHECK(asked_ns.size() >= 15 && asked_ns.size() <= 25);
  CHECK(asked_ns[1] - asked_ns[0] < 4'000'000);
  // Requests stay frequent enough to recover from a lost grant.
  for (std::size_t i = 1; i < asked_ns.size(); ++i) CHECK(asked_ns[i] - asked_ns[i - 1] < 40'000'000);
}
