// Two stacks connected in memory with a virtual clock, for native tests. A packet is lost only if the test's filter
// says so.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "native/core/stack.h"
#include "native/policy/loader.h"

namespace weft::test {

using namespace weft::core;

// The directory of the shipped policies in the build folder, beside the test executables.
inline std::string policy_directory() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "policies").string();
}

// Loads a shipped policy, which stays loaded until the program ends.
inline PolicyChoice shipped(policy::Family family, const char* name) {
  static std::vector<std::shared_ptr<const policy::Library>> kept;
  std::string error;
  kept.push_back(policy::find(family, name, {policy_directory()}, &error));
  if (kept.back() == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  return kept.back() == nullptr ? PolicyChoice{} : PolicyChoice{&kept.back()->descriptor(), nullptr};
}

inline StackConfig shipped_config() {
  StackConfig config;
  config.window = shipped(policy::Family::window, "swift");
  config.path = shipped(policy::Family::path, "power_of_two");
  config.loss = shipped(policy::Family::loss, "rack");
  return config;
}

// A copy of one packet, which remains valid after its burst.
struct Wired {
  int to = 0;
  u8 path = 0;
  std::vector<u8> header;
  std::vector<u8> payload;
  wire::Type type() const { return static_cast<wire::Type>(header[3]); }
  RxDatagram view() const {
    RxDatagram datagram;
    datagram.header = header.data();
    datagram.header_bytes = static_cast<u32>(header.size());
    datagram.payload = payload.data();
    datagram.payload_bytes = static_cast<u32>(payload.size());
    return datagram;
  }
};

// Two stacks, end 0 and end 1, with one flow between them.
struct Pair {
  static constexpr u64 kToken[2] = {0x1111'2222'3333'4444u, 0x5555'6666'7777'8888u};
  static constexpr u64 kPeerToken[2] = {0xAAAA'0000u, 0xBBBB'0000u};

  explicit Pair(const StackConfig& config, u16 paths = 4, u16 segment_bytes = 1472, i64 port_buffer_bytes = 1 << 20,
                bool search_size = false, i64 open_bytes = -1)
      : stack{Stack(config), Stack(config)}, burst(std::make_unique<TxBurst>()) {
    for (int end = 0; end < 2; ++end) {
      static_cast<void>(stack[end].reserve_peer(&peer[end]));
      static_cast<void>(stack[end].reserve_flow(&flow[end]));
    }
    for (int end = 0; end < 2; ++end) {
      PeerConfig peer_config;
      peer_config.remote_peer = peer[1 - end];
      peer_config.local_token = kPeerToken[end];
      peer_config.remote_token = kPeerToken[1 - end];
      peer_config.path_count = paths;
      peer_config.segment_bytes = segment_bytes;
      peer_config.train_bytes_max = 65'000;
      peer_config.port_buffer_bytes = port_buffer_bytes;
      peer_config.search_size = search_size;
      peer_config.open_bytes = end == 1 ? open_bytes : -1;  // end 1 has accepted
      opened = opened && stack[end].open_peer(now_ns, peer[end], peer_config) == Status::ok;
      FlowConfig flow_config;
      flow_config.peer = peer[end];
      flow_config.remote_flow = flow[1 - end];
      flow_config.local_token = kToken[end];
      flow_config.remote_token = kToken[1 - end];
      opened = opened && stack[end].open_flow(now_ns, flow[end], flow_config) == Status::ok;
    }
  }

  struct Buffer {
    std::vector<u8> bytes;
    ReceiveTicket ticket;
  };

  // Adds a flow between the same peers; returns its index at each end.
  std::array<u32, 2> add_flow() {
    std::array<u32, 2> made{};
    const u64 number = ++flows_added;
    for (int end = 0; end < 2; ++end) opened = opened && stack[end].reserve_flow(&made[end]) == Status::ok;
    for (int end = 0; end < 2; ++end) {
      FlowConfig flow_config;
      flow_config.peer = peer[end];
      flow_config.remote_flow = made[1 - end];
      flow_config.local_token = kToken[end] + number;
      flow_config.remote_token = kToken[1 - end] + number;
      opened = opened && stack[end].open_flow(now_ns, made[end], flow_config) == Status::ok;
    }
    return made;
  }

  Status send(int end, const u8* data, u64 bytes, void* cookie = nullptr) {
    return stack[end].post_send(now_ns, flow[end], {sent[end]++, data, bytes, 0, cookie, nullptr});
  }
  Status receive(int end, u8* data, u64 bytes, ReceiveTicket* ticket) {
    const u64 message = received[end]++;
    ticket->message.store(message);
    return stack[end].post_receive(now_ns, flow[end], {message, data, bytes, 0, ticket, nullptr});
  }

  // All packets that `end` would send now.
  std::vector<Wired> take(int end) {
    std::vector<Wired> out;
    while (stack[end].poll_transmit(now_ns, burst.get())) {
      for (u16 i = 0; i < burst->count; ++i) {
        Wired packet;
        packet.to = 1 - end;
        packet.path = burst->path;
        packet.header.assign(burst->header(i), burst->header(i) + burst->header_bytes);
        if (burst->payload[i].bytes != 0) {
          packet.payload.assign(burst->payload[i].data, burst->payload[i].data + burst->payload[i].bytes);
        }
        out.push_back(std::move(packet));
      }
    }
    return out;
  }
  void give(const Wired& packet) { stack[packet.to].on_datagram(now_ns, packet.view()); }

  // Runs one exchange: packets of both ends arrive 20 us later, except those for which `drops` is true. False if there
  // were no packets.
  bool exchange(const std::function<bool(const Wired&)>& drops = nullptr) {
    std::vector<Wired> packets = take(0);
    for (Wired& packet : take(1)) packets.push_back(std::move(packet));
    if (packets.empty()) return false;  // do not advance the clock, which might skip a timer's deadline
    now_ns += 20'000;
    for (const Wired& packet : packets) {
      if (drops == nullptr || !drops(packet)) give(packet);
    }
    for (Stack& each : stack) each.on_timer(now_ns);
    return true;
  }
  // Runs until `done` is true, or until no packet or timer is left within `limit_ns` from now.
  bool run(const std::function<bool()>& done, const std::function<bool(const Wired&)>& drops = nullptr,
           i64 limit_ns = 60'000'000'000) {
    const i64 end_ns = now_ns + limit_ns;
    while (!done() && now_ns < end_ns) {
      if (exchange(drops)) continue;
      const i64 next_ns = std::min(stack[0].poll_timeout(), stack[1].poll_timeout());
      if (next_ns == kNever) break;
      now_ns = std::max(now_ns, next_ns);
      for (Stack& each : stack) each.on_timer(now_ns);
    }
    return done();
  }
  // Counts the events of one kind and discards the others.
  int events(int end, Event::Kind kind) {
    int count = 0;
    for (Event event; stack[end].poll_event(&event);) count += event.kind == kind ? 1 : 0;
    return count;
  }

  // The number of distinct payload bytes that `end` has received.
  u64 received_bytes(int end) { return static_cast<u64>(stack[end].flow(flow[end])->rx.counters().bytes_received); }

  u64 flows_added = 0;
  bool opened = true;
  Stack stack[2];
  u32 peer[2] = {}, flow[2] = {};
  u64 sent[2] = {}, received[2] = {};
  i64 now_ns = 1'000'000;
  std::unique_ptr<TxBurst> burst;
};

inline std::vector<u8> pattern(u64 bytes, u64 seed) {
  Random random(seed);
  std::vector<u8> out(bytes);
  for (u8& byte : out) byte = static_cast<u8>(random.next());
  return out;
}

}  // namespace weft::test
