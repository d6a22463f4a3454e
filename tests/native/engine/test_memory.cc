// Tests P-7: the memory of idle flows and peers, measured by counting allocations. The idle flows have carried messages
// before.
#include "tests/native/check.h"
#include "tests/native/counted.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::live_bytes;

namespace {

constexpr u16 kPaths = 8;

PeerConfig peer_config(u32 remote) {
  PeerConfig config;
  config.remote_peer = remote;
  config.local_token = config.remote_token = 77;
  config.path_count = kPaths;
  config.train_bytes_max = 65'000;
  return config;
}

// Many flows between two stacks, with equal tokens, and equal indices at both ends.
struct Crowd {
  explicit Crowd(u32 count) : config(weft::test::shipped_config()), stack{Stack(config), Stack(config)}, flows(count) {
    for (Stack& each : stack) {
      u32 index = 0;
      CHECK_EQUAL(each.reserve_peer(&index), Status::ok);
      CHECK_EQUAL(each.open_peer(0, index, peer_config(0)), Status::ok);
    }
  }
  void open() {
    for (Stack& each : stack) {
      for (u32 i = 0; i < flows; ++i) {
        u32 index = 0;
        CHECK_EQUAL(each.reserve_flow(&index), Status::ok);
        FlowConfig flow;
        flow.remote_flow = index;
        flow.local_token = flow.remote_token = 1000 + index;
        CHECK_EQUAL(each.open_flow(now_ns, index, flow), Status::ok);
      }
    }
  }
  void pump() {
    for (int quiet = 0; quiet < 2;) {
      ++quiet;
      for (int end = 0; end < 2; ++end) {
        now_ns += 1000;
        stack[end].on_timer(now_ns);
        while (stack[end].poll_transmit(now_ns, burst.get())) {
          quiet = 0;
          for (u16 i = 0; i < burst->count; ++i) {
            RxDatagram datagram;
            datagram.header = burst->header(i);
            datagram.header_bytes = burst->header_bytes;
            datagram.payload = burst->payload[i].data;
            datagram.payload_bytes = burst->payload[i].bytes;
            stack[1 - end].on_datagram(now_ns, datagram);
          }
        }
        for (Event event; stack[end].poll_event(&event);) placed += event.kind == Event::Kind::stripe_placed ? 1 : 0;
      }
    }
  }
  // Sends a message in each direction on every flow, then lets them idle for longer than the idle time.
  void talk(std::vector<ReceiveTicket>* tickets, u8* buffer, u64 bytes, u64 message) {
    for (u32 i = 0; i < flows; ++i) {
      for (int end = 0; end < 2; ++end) {
        ReceiveTicket& ticket = (*tickets)[2 * i + static_cast<u32>(end)];
        ticket.message.store(message);
        ticket.agreed_bytes.store(-1);
        CHECK_EQUAL(stack[end].post_receive(now_ns, i, {message, buffer, bytes, 0, &ticket, nullptr}), Status::ok);
        CHECK_EQUAL(stack[end].post_send(now_ns, i, {message, buffer, bytes, 0, nullptr, nullptr}), Status::ok);
      }
      pump();
    }
    for (int i = 0; i < 20; ++i) {
      now_ns += 50'000'000;
      pump();
    }
  }

  StackConfig config;
  Stack stack[2];
  u32 flows;
  i64 now_ns = 1'000'000, placed = 0;
  std::unique_ptr<TxBurst> burst = std::make_unique<TxBurst>();
};

}  // namespace

TEST(memory__an_idle_flow_costs_at_most_2_kb) {
  constexpr u32 kFlows = 500;
  Crowd crowd(kFlows);
  std::vector<ReceiveTicket> tickets(2 * kFlows);
  std::vector<u8> buffer(20'000);
  const long before = live_bytes.load();
  crowd.open();
  const long opened = (live_bytes.load() - before) / (2 * kFlows);
  crowd.talk(&tickets, buffer.data(), buffer.size(), 0);
  crowd.talk(&tickets, buffer.data(), 100, 1);
  CHECK_EQUAL(crowd.placed, 4 * kFlows);
  const long idle = (live_bytes.load() - before) / (2 * kFlows);
  std::printf("     %ld bytes a flow when opened, %ld when idle after use\n", opened, idle);
  CHECK(opened <= 2048);
  CHECK(idle <= 2048);
}

TEST(memory__an_idle_peer_with_8_paths_costs_at_most_256_kb) {
  Stack stack(weft::test::shipped_config());
  const long before = live_bytes.load();
  for (u32 i = 0; i < 100; ++i) {
    u32 index = 0;
    CHECK_EQUAL(stack.reserve_peer(&index), Status::ok);
    CHECK_EQUAL(stack.open_peer(0, index, peer_config(i)), Status::ok);
  }
  const long bytes = (live_bytes.load() - before) / 100;
  std::printf("     %ld bytes a peer\n", bytes);
  CHECK(bytes <= 256 * 1024);
}

TEST(memory__a_peer_with_a_flow_costs_the_same_however_many_there_are) {
  Stack stack(weft::test::shipped_config());
  const auto open = [&](u32 count) {
    const long before = live_bytes.load();
    for (u32 i = 0; i < count; ++i) {
      u32 peer = 0, flow = 0;
      CHECK_EQUAL(stack.reserve_peer(&peer), Status::ok);
      CHECK_EQUAL(stack.open_peer(0, peer, peer_config(i)), Status::ok);
      CHECK_EQUAL(stack.reserve_flow(&flow), Status::ok);
      FlowConfig config;
      config.peer = peer;
      config.local_token = config.remote_token = 1000 + flow;
      CHECK_EQUAL(stack.open_flow(0, flow, config), Status::ok);
    }
    return (live_bytes.load() - before) / count;
  };
  const long few = open(100), many = open(4000);
  std::printf("     %ld bytes each of 100, %ld each of 4000\n", few, many);
  CHECK(many <= few + few / 4);  // the tables of indices grow in steps
}

TEST(memory__a_deferred_flow_costs_at_most_64_bytes) {
  struct Source final : FlowSource {
    bool config_of(u32, FlowConfig*) noexcept override { return false; }
    void on_flow_opened(u32, Flow*) noexcept override {}
  };
  constexpr u32 kDeferred = 4096;
  Source source;
  Stack stack(weft::test::shipped_config());
  stack.supply_flows(&source);
  u32 peer = 0;
  CHECK_EQUAL(stack.reserve_peer(&peer), Status::ok);
  CHECK_EQUAL(stack.open_peer(0, peer, peer_config(0)), Status::ok);
  const long before = live_bytes.load();
  for (u32 i = 0; i < kDeferred; ++i) {
    u32 flow = 0;
    CHECK_EQUAL(stack.reserve_flow(&flow), Status::ok);
    stack.defer_flow(0, flow, peer);
  }
  const long each = (live_bytes.load() - before) / kDeferred;
  std::printf("     %ld bytes a deferred flow\n", each);
  CHECK(each <= 64);
}

TEST(memory__what_is_released_is_given_back) {
  const long before = live_bytes.load();
  {
    Crowd crowd(50);
    crowd.open();
    std::vector<ReceiveTicket> tickets(100);
    std::vector<u8> buffer(50'000);
    crowd.talk(&tickets, buffer.data(), buffer.size(), 0);
  }
  // 64 KB are allowed, because the shipped policies stay loaded until the program ends.
  CHECK(live_bytes.load() - before < 64 * 1024);
}
