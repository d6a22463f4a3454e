// Tests that after a warm-up a transfer allocates no memory, per segment or per message, with or without losses. Two
// stacks exchange bursts in memory, and every allocation of the process is counted.
#include "tests/native/check.h"
#include "tests/native/counted.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::Status;
using weft::test::allocations;
using weft::test::Pair;

namespace {

constexpr u64 kMessageBytes = 256 * 1024;
constexpr int kInFlight = 8;

// Passes bursts between the stacks without copying, so that the test itself does not allocate.
struct Ferry {
  Ferry(const StackConfig& config, u64 drop_every) : pair(config), every(drop_every), data(kMessageBytes, 7) {
    for (auto& buffer : buffers) buffer.resize(kMessageBytes);
  }
  void carry(int from) {
    TxBurst& burst = *pair.burst;
    while (pair.stack[from].poll_transmit(pair.now_ns, &burst)) {
      pair.now_ns += 200;
      for (u16 i = 0; i < burst.count; ++i) {
        if (every != 0 && ++carried % every == 0) continue;
        RxDatagram datagram;
        datagram.header = burst.header(i);
        datagram.header_bytes = burst.header_bytes;
        datagram.payload = burst.payload[i].data;
        datagram.payload_bytes = burst.payload[i].bytes;
        pair.stack[1 - from].on_datagram(pair.now_ns, datagram);
      }
    }
  }
  void step() {
    for (int end = 0; end < 2; ++end) {
      pair.now_ns += 2000;
      pair.stack[end].on_timer(pair.now_ns);
      carry(end);
      for (Event event; pair.stack[end].poll_event(&event);) {
        if (event.kind == Event::Kind::send_done) *static_cast<bool*>(event.cookie) = false;
        if (event.kind != Event::Kind::stripe_placed) continue;
        receiving[static_cast<ReceiveTicket*>(event.cookie) - tickets] = false;
        ++done;
      }
    }
  }
  // Runs until `messages` more messages have arrived; false if they do not arrive.
  bool transfer(int messages) {
    const int target = done + messages;
    for (int steps = 0; done < target && steps < 2'000'000; ++steps) {
      while (posted < target) {
        const int slot = posted % kInFlight;
        if (sending[slot] || receiving[slot]) break;
        sending[slot] = receiving[slot] = true;
        ReceiveTicket& ticket = tickets[slot];
        ticket.agreed_bytes.store(-1);
        ticket.stripes_placed.store(0);
        if (pair.receive(1, buffers[slot].data(), kMessageBytes, &ticket) != Status::ok) return false;
        if (pair.send(0, data.data(), kMessageBytes, &sending[slot]) != Status::ok) return false;
        ++posted;
      }
      step();
    }
    return done == target;
  }

  Pair pair;
  u64 every, carried = 0;
  std::vector<u8> data, buffers[kInFlight];
  ReceiveTicket tickets[kInFlight];
  bool sending[kInFlight] = {}, receiving[kInFlight] = {};
  int posted = 0, done = 0;
};

void check_none(const StackConfig& config, u64 drop_every) {
  Ferry ferry(config, drop_every);
  CHECK(ferry.transfer(WEFT_SANITIZED ? 300 : 400));  // warm-up: queues reach their final capacity
  const i64 segments = ferry.pair.stack[0].flow(ferry.pair.flow[0])->tx.counters().segments_sent;
  const long before = allocations.load();
  const bool arrived = ferry.transfer(WEFT_SANITIZED ? 100 : 400);
  const long made = allocations.load() - before;
  CHECK(arrived);
  CHECK_EQUAL(made, 0);
  CHECK(ferry.pair.stack[0].flow(ferry.pair.flow[0])->tx.counters().segments_sent - segments > 15'000);
}

}  // namespace

TEST(allocations__the_count_counts) {
  const long before = allocations.load();
  void* volatile one = operator new(8);
  const std::vector<int> two(100);
  const int* volatile first = two.data();  // a compiler may leave out memory that nobody sees
  static_cast<void>(first);
  CHECK(allocations.load() >= before + 2);
  operator delete(one);
#if !WEFT_SANITIZED
  const long between = allocations.load();
  void* volatile three = std::malloc(8);
  CHECK_EQUAL(allocations.load(), between + 1);
  std::free(three);
#endif
}

TEST(allocations__none_with_fixed_policies) { check_none(StackConfig{}, 0); }

TEST(allocations__none_with_the_shipped_policies) { check_none(weft::test::shipped_config(), 0); }

TEST(allocations__none_under_loss) { check_none(weft::test::shipped_config(), 101); }

TEST(allocations__none_with_credit) {
  StackConfig config = weft::test::shipped_config();
  config.credit = weft::test::shipped(weft::policy::Family::credit, "grant");
  check_none(config, 101);
}
