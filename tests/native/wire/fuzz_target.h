// For fuzz_wire.cc: a corpus of real packets, and a pair of stacks as the target, which reports violated rules.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "native/wire/crc32c.h"
#include "tests/native/pair.h"

namespace weft::test {

// Packets of every type, recorded once from two stacks that communicate with losses.
inline std::vector<Wired> corpus() {
  StackConfig config;
  config.payload_crc = true;
  config.credit = shipped(policy::Family::credit, "grant");
  Pair pair(config);
  Random random(3);
  std::vector<Wired> seen;
  std::vector<u8> data = pattern(30'000, 1), buffer(30'000);
  std::vector<ReceiveTicket> tickets(12);
  const auto record = [&](const Wired& packet) {
    seen.push_back(packet);
    return random.next() % 5 == 0;
  };
  for (u64 i = 0; i < tickets.size(); ++i) {
    static_cast<void>(pair.receive(1, buffer.data(), buffer.size(), &tickets[i]));
    static_cast<void>(pair.send(0, data.data(), i % 3 == 0 ? 30'000 : i % 3 == 1 ? 100 : 0));
    static_cast<void>(pair.run([&] { return false; }, record, 30'000'000));
  }
  // Let both ends be silent for a while, which causes probes; then close them.
  static_cast<void>(pair.receive(1, buffer.data(), buffer.size(), &tickets[0]));
  static_cast<void>(pair.send(0, data.data(), 30'000));
  static_cast<void>(pair.run([&] { return false; }, [](const Wired&) { return true; }, 50'000'000));
  static_cast<void>(pair.run([&] { return false; }, record, 1'000'000'000));
  pair.stack[0].close_flow(pair.now_ns, pair.flow[0], Status::cancelled);
  static_cast<void>(pair.run([&] { return false; }, record, 1'000'000'000));
  return seen;
}

// Corrects the checksum of a header.
inline void reseal(std::vector<u8>* header) {
  if (header->size() < 8) return;
  std::memset(header->data() + 4, 0, 4);
  const u32 crc = wire::crc32c(0, header->data(), header->size());
  std::memcpy(header->data() + 4, &crc, 4);
}

// A pair of stacks in the middle of transfers, to which single packets are passed; its replies are dropped.
class FuzzTarget {
 public:
  explicit FuzzTarget(u64 seed) : random_(seed), pair_(config(seed)), data_(pattern(30'000, seed)) {
    for (int i = 0; i < kMessages; ++i) {
      buffers_[i].assign(30'000 + kGuardBytes, 0xA5);
      static_cast<void>(pair_.receive(1, buffers_[i].data(), 30'000, &tickets_[i]));
      static_cast<void>(pair_.send(0, data_.data(), 30'000, this));
    }
    for (u64 i = random_.next() % 4; i != 0; --i) {
      pair_.exchange([&](const Wired&) { return random_.next() % 2 == 0; });
    }
  }
  void feed(const Wired& packet) {
    pair_.now_ns += static_cast<i64>(random_.next() % 100'000);
    pair_.give(packet);
    if (random_.next() % 8 != 0) return;
    for (int end = 0; end < 2; ++end) {
      pair_.stack[end].on_timer(pair_.now_ns);
      for (int bursts = 0; bursts < 20; ++bursts) {
        if (!pair_.stack[end].poll_transmit(pair_.now_ns, pair_.burst.get())) break;
      }
      for (Event event; pair_.stack[end].poll_event(&event);) check(event);
    }
    for (const auto& buffer : buffers_) {
      const bool whole = std::all_of(buffer.end() - kGuardBytes, buffer.end(), [](u8 byte) { return byte == 0xA5; });
      if (!whole) complaint_ = "bytes beyond a receive were written";
    }
  }
  const std::string& complaint() const { return complaint_; }

 private:
  static constexpr int kMessages = 4;
  static constexpr std::ptrdiff_t kGuardBytes = 64;

  static StackConfig config(u64 seed) {
    StackConfig config;
    config.payload_crc = seed % 2 == 0;
    if (seed % 3 == 0) config.credit = grant();
    return config;
  }
  static PolicyChoice grant() {
    static const PolicyChoice choice = shipped(policy::Family::credit, "grant");
    return choice;
  }
  void check(const Event& event) {
    if (event.kind == Event::Kind::send_done && event.cookie != this) complaint_ = "a send completed that nobody made";
    if (event.kind != Event::Kind::stripe_placed) return;
    const bool ours = std::any_of(std::begin(tickets_), std::end(tickets_),
                                  [&](const ReceiveTicket& ticket) { return event.cookie == &ticket; });
    if (!ours) complaint_ = "a receive completed that nobody posted";
    if (event.value > 30'000) complaint_ = "a message is longer than its receive";
  }

  Random random_;
  Pair pair_;
  std::vector<u8> data_, buffers_[kMessages];
  ReceiveTicket tickets_[kMessages];
  std::string complaint_;
};

}  // namespace weft::test
