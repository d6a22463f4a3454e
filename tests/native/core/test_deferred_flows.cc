// Tests deferred flows: they are opened by the first message or packet, close and fail without having been opened, and
// cost little until then.
#include <array>
#include <map>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
namespace wire = weft::wire;
using weft::test::Pair;
using weft::test::Wired;

namespace {

constexpr u64 kToken = 0xABCD'0000u;
constexpr u64 kBytes = 300'000;

// What the owners of both stacks know of their deferred flows.
struct Source final : FlowSource {
  std::map<u32, FlowConfig> configs;
  std::map<u32, int> opened;
  bool config_of(u32 flow, FlowConfig* out) noexcept override {
    const auto place = configs.find(flow);
    if (place == configs.end()) return false;
    *out = place->second;
    return true;
  }
  void on_flow_opened(u32 index, Flow* flow) noexcept override {
    CHECK(flow != nullptr && flow->index == index);
    ++opened[index];
  }
};

// A pair of stacks with a flow that is deferred at both ends.
struct Deferred {
  explicit Deferred(const StackConfig& config = {}) : pair(config) {
    for (int end = 0; end < 2; ++end) {
      pair.stack[end].supply_flows(&source[end]);
      CHECK_EQUAL(pair.stack[end].reserve_flow(&flow[end]), Status::ok);
    }
    for (int end = 0; end < 2; ++end) {
      FlowConfig& made = source[end].configs[flow[end]];
      made.peer = pair.peer[end];
      made.remote_flow = flow[1 - end];
      made.local_token = kToken + static_cast<u64>(end);
      made.remote_token = kToken + 1 - static_cast<u64>(end);
      pair.stack[end].defer_flow(pair.now_ns, flow[end], pair.peer[end]);
    }
  }
  bool is_open(int end) { return pair.stack[end].flow(flow[end]) != nullptr; }
  Status send(int end, const u8* data, u64 bytes) {
    return pair.stack[end].post_send(pair.now_ns, flow[end], {0, data, bytes, 0, nullptr, nullptr});
  }
  Status receive(int end, u8* data, u64 bytes) {
    ticket.message.store(0);
    return pair.stack[end].post_receive(pair.now_ns, flow[end], {0, data, bytes, 0, &ticket, nullptr});
  }
  // The events of the deferred flow.
  std::vector<Event> events(int end) {
    std::vector<Event> found;
    for (Event event; pair.stack[end].poll_event(&event);) {
      if (event.flow == flow[end] && event.kind != Event::Kind::peer_released) found.push_back(event);
    }
    return found;
  }

  Pair pair;
  Source source[2];
  u32 flow[2] = {};
  ReceiveTicket ticket;
};

}  // namespace

TEST(deferred_flows__open_with_the_first_message_at_one_end_and_the_first_packet_at_the_other) {
  Deferred deferred;
  CHECK(!deferred.is_open(0) && !deferred.is_open(1));
  const std::vector<u8> sent = weft::test::pattern(kBytes, 1);
  std::vector<u8> got(kBytes);
  CHECK_EQUAL(deferred.send(0, sent.data(), kBytes), Status::ok);
  CHECK(deferred.is_open(0) && !deferred.is_open(1));
  CHECK_EQUAL(deferred.receive(1, got.data(), kBytes), Status::ok);
  CHECK(deferred.pair.run([&] { return got == sent; }));
  for (int end = 0; end < 2; ++end) CHECK_EQUAL(deferred.source[end].opened[deferred.flow[end]], 1);
}

TEST(deferred_flows__an_advertisement_opens_the_sender) {
  Deferred deferred;
  std::vector<u8> got(kBytes);
  CHECK_EQUAL(deferred.receive(1, got.data(), kBytes), Status::ok);
  CHECK(deferred.pair.run([&] { return deferred.is_open(0); }));
  const std::vector<u8> sent = weft::test::pattern(kBytes, 2);
  CHECK_EQUAL(deferred.send(0, sent.data(), kBytes), Status::ok);
  CHECK(deferred.pair.run([&] { return got == sent; }));
}

TEST(deferred_flows__a_wrong_token_or_an_answer_opens_none) {
  Deferred deferred;
  std::vector<u8> got(kBytes);
  CHECK_EQUAL(deferred.receive(1, got.data(), kBytes), Status::ok);
  Stack& stack = deferred.pair.stack[0];
  const auto strays = [&] { return static_cast<i64>(stack.counters().stray); };
  const i64 before = strays();
  std::array<u8, 256> header{};
  wire::Common common;
  common.flow = deferred.flow[0];
  const auto give = [&](std::size_t bytes) {
    RxDatagram datagram;
    datagram.header = header.data();
    datagram.header_bytes = static_cast<u32>(bytes);
    stack.on_datagram(deferred.pair.now_ns, datagram);
  };
  common.token = kToken + 7;
  common.type = wire::Type::close;
  give(wire::encode_close(header.data(), common, {1, 0}));
  common.token = kToken;
  common.type = wire::Type::advert_ack;
  give(wire::encode_advert_ack(header.data(), common, {0}));
  CHECK_EQUAL(strays(), before + 2);
  CHECK(!deferred.is_open(0));
}

TEST(deferred_flows__close_at_both_ends) {
  Deferred deferred;
  deferred.pair.stack[0].close_flow(deferred.pair.now_ns, deferred.flow[0], Status::cancelled);
  std::vector<Event> first, second;
  CHECK(deferred.pair.run([&] {
    for (const Event& event : deferred.events(0)) first.push_back(event);
    for (const Event& event : deferred.events(1)) second.push_back(event);
    return first.size() == 1 && second.size() == 2;
  }));
  CHECK(first[0].kind == Event::Kind::flow_closed);
  CHECK(second[0].kind == Event::Kind::peer_closed && !second[0].receive_waits && second[0].value == 0);
  CHECK(second[1].kind == Event::Kind::flow_closed);
}

TEST(deferred_flows__end_with_their_peer_and_are_never_opened) {
  Deferred deferred;
  Stack& stack = deferred.pair.stack[0];
  const u32 flow = deferred.flow[0], peer = deferred.pair.peer[0];
  stack.fail_peer(deferred.pair.now_ns, peer, Status::peer_dead);
  std::vector<Event> events = deferred.events(0);
  CHECK_EQUAL(events.size(), 1u);
  CHECK(events[0].kind == Event::Kind::peer_closed && events[0].status == Status::peer_dead);
  const u8 byte = 1;
  CHECK_EQUAL(deferred.send(0, &byte, 1), Status::connection_closed);
  CHECK(!deferred.is_open(0));
  stack.close_flow(deferred.pair.now_ns, flow, Status::cancelled);
  events = deferred.events(0);
  CHECK(events.size() == 1 && events[0].kind == Event::Kind::flow_closed);
  // The peer is released with its last flow, deferred or not.
  stack.release_flow(deferred.pair.flow[0]);
  CHECK_EQUAL(deferred.pair.events(0, Event::Kind::peer_released), 0);
  stack.release_flow(flow);
  CHECK_EQUAL(deferred.pair.events(0, Event::Kind::peer_released), 1);
}

TEST(deferred_flows__fail_when_their_peer_is_given_up) {
  Deferred deferred;
  deferred.pair.stack[0].give_up_peer(deferred.pair.now_ns, deferred.pair.peer[0], Status::peer_silent);
  const std::vector<Event> events = deferred.events(0);
  CHECK_EQUAL(events.size(), 1u);
  CHECK(events[0].kind == Event::Kind::flow_failed && events[0].status == Status::peer_silent);
}

TEST(deferred_flows__of_a_dead_peer_end_at_once) {
  Deferred deferred;
  Stack& stack = deferred.pair.stack[0];
  u32 late = 0;
  CHECK_EQUAL(stack.reserve_flow(&late), Status::ok);
  stack.fail_peer(deferred.pair.now_ns, deferred.pair.peer[0], Status::peer_dead);
  static_cast<void>(deferred.events(0));
  stack.defer_flow(deferred.pair.now_ns, late, deferred.pair.peer[0]);
  Event event;
  CHECK(stack.poll_event(&event));
  CHECK(event.kind == Event::Kind::peer_closed && event.flow == late);
}

TEST(deferred_flows__open_when_their_policy_is_changed) {
  Deferred deferred(weft::test::shipped_config());
  const auto chosen = weft::test::shipped(weft::policy::Family::window, "cubic");
  StackPolicies& policies = deferred.pair.stack[0].policies();
  CHECK(policies.set(deferred.pair.now_ns, weft::policy::Family::window, deferred.flow[0], chosen, false));
  CHECK(deferred.is_open(0));
  CHECK(policies.in_force(weft::policy::Family::window, deferred.flow[0]).descriptor == chosen.descriptor);
}

TEST(deferred_flows__an_index_can_be_used_again) {
  Deferred deferred;
  Stack& stack = deferred.pair.stack[0];
  stack.release_flow(deferred.flow[0]);
  u32 again = 0;
  CHECK_EQUAL(stack.reserve_flow(&again), Status::ok);
  CHECK_EQUAL(again, deferred.flow[0]);
  CHECK_EQUAL(stack.open_flow(deferred.pair.now_ns, again, deferred.source[0].configs[again]), Status::ok);
  CHECK_EQUAL(deferred.source[0].opened[again], 0);
}
