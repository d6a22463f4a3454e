// Scenarios for handles, listeners, devices and communicators, as NCCL uses them beyond its
// headers; README.md lists the points. None needs two processes, so all run on the fake runtime
// too.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "native/control/handle.h"
#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

// The second halves of handles distinguish two connection attempts to one listener. An
// attempt to a closed listener ends with an error. host_net.h checks that each call returns at
// once.
void attempts_keep_apart_and_end(Side& side) {
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  Handle first = side.hear<Handle>();
  Handle second = first;
  void* sends[2] = {};
  void* receives[2] = {};
  const Deadline deadline;
  while (std::count(sends, sends + 2, nullptr) + std::count(receives, receives + 2, nullptr) > 0) {
    REQUIRE(!deadline.over());
    for (int i = 0; i < 2; ++i) {
      std::uint8_t* const handle = i == 0 ? first.bytes : second.bytes;
      if (sends[i] == nullptr) {
        REQUIRE(side.net.connect(side.context, 0, handle, &sends[i]) == Result::success);
      }
      if (receives[i] == nullptr) REQUIRE(side.net.accept(listener, &receives[i]) == Result::success);
    }
  }
  REQUIRE(sends[0] != sends[1] && receives[0] != receives[1]);
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.barrier();
  Result result = Result::success;
  while (result == Result::success) {
    REQUIRE(!deadline.over());
    void* comm = nullptr;
    result = side.net.connect(side.context, 0, first.bytes, &comm);
    REQUIRE(comm == nullptr);
  }
  side.barrier();
  for (int i = 0; i < 2; ++i) side.unlink({sends[i], receives[i]});
  side.stop();
}

// A peer may connect before accept is called or long after; a listener may be closed while a peer
// waits.
void peers_come_early_late_and_in_vain(Side& side) {
  side.start();
  for (const bool early : {true, false}) {
    Handle own;
    void* const listener = side.listen(own.bytes);
    side.tell(own);
    Handle peer = side.hear<Handle>();
    Link link;
    for (int i = 0; i < 30; ++i) {
      if (early && link.send == nullptr) {
        REQUIRE(side.net.connect(side.context, 0, peer.bytes, &link.send) == Result::success);
      }
      if (!early) REQUIRE(side.net.accept(listener, &link.receive) == Result::success && link.receive == nullptr);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    side.barrier();
    const Deadline deadline;
    while (link.send == nullptr || link.receive == nullptr) {
      REQUIRE(!deadline.over());
      side.step(listener, &peer, &link);
    }
    exchange(side, link, {0, 1000});
    REQUIRE(side.net.close_listen(listener) == Result::success);
    side.barrier();
    side.unlink(link);
  }
  // If the listener is closed without an accept, the connection attempt fails, or else the connection fails later.
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  Handle peer = side.hear<Handle>();
  void* comm = nullptr;
  REQUIRE(side.net.connect(side.context, 0, peer.bytes, &comm) == Result::success);
  side.barrier();
  REQUIRE(side.net.close_listen(listener) == Result::success);
  const Deadline deadline;
  Result result = Result::success;
  while (comm == nullptr && result == Result::success) {
    REQUIRE(!deadline.over());
    result = side.net.connect(side.context, 0, peer.bytes, &comm);
  }
  REQUIRE((comm == nullptr) == (result != Result::success));
  if (comm != nullptr) {
    std::uint8_t byte = 0;
    const Deadline patience;
    while (result == Result::success) {
      REQUIRE(!patience.over());
      result = side.outcome(side.send(comm, &byte, 1, nullptr), nullptr);
    }
    REQUIRE(result == Result::remote_error);
    REQUIRE(side.net.close_send(comm) == Result::success);
  }
  side.barrier();
  side.stop();
}

// NCCL may call connect a few times, and then never again, for example after an abort. Such attempts end with the
// listener, and what they held is freed without another call: before version 11 all of it, for there is no finalize.
void abandoned_connects_end_with_the_listener(Side& side) {
  const std::size_t before = threads().size();
  const std::size_t descriptors_max = open_descriptors().size() + 1;  // one that forked children need stays open
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  const Handle peer = side.hear<Handle>();
  for (int i = 0; i < 100; ++i) {
    Handle abandoned = peer;
    void* comm = nullptr;
    REQUIRE(side.net.connect(side.context, 0, abandoned.bytes, &comm) == Result::success);
    if (comm != nullptr) REQUIRE(side.net.close_send(comm) == Result::success);
  }
  // The peer accepts a few of them, posts a receive and closes, which the abandoned end never asks about.
  std::uint8_t byte = 0;
  for (int i = 0; i < 3; ++i) {
    void* comm = nullptr;
    const Deadline patience;
    while (comm == nullptr) {
      REQUIRE(!patience.over());
      REQUIRE(side.net.accept(listener, &comm) == Result::success);
    }
    side.receive(comm, &byte, 1, nullptr);
    REQUIRE(side.net.close_receive(comm) == Result::success);
  }
  side.barrier();
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.barrier();
  if (side.net.has_finalize()) side.stop();
  const Deadline deadline;
  while (threads().size() != before || open_descriptors().size() > descriptors_max) {
    REQUIRE(!deadline.over());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  side.barrier();
  if (side.net.has_finalize()) side.start();
  const Link link = side.link();
  exchange(side, link, {0, 1000});
  side.barrier();
  side.unlink(link);
  side.stop();
}

// Several threads at once connect to their own listeners, as NCCL may do; the process then has both ends.
void threads_connect_to_themselves(Side& side) {
  side.start();
  std::vector<std::thread> workers;
  for (std::size_t worker = 0; worker < 4; ++worker) {
    workers.emplace_back([&side, worker] {
      Buffer out(20000);
      Buffer in(20000);
      for (std::size_t round = 0; round < 5; ++round) {
        Handle handle;
        void* const listener = side.listen(handle.bytes);
        const Link link = side.link_through(listener, handle);
        REQUIRE(side.net.close_listen(listener) == Result::success);
        fill(out.data(), 20000, worker + round);
        void* const receive = side.receive(link.receive, in.data(), 20000, nullptr);
        void* const send = side.send(link.send, out.data(), 20000, nullptr);
        side.finish(receive, 20000);
        side.finish(send, 20000);
        REQUIRE(holds(in.data(), 20000, worker + round));
        side.unlink(link);
      }
    });
  }
  for (std::thread& each : workers) each.join();
  side.barrier();
  side.stop();
}

// NCCL closes a listener after one accept, or accepts many times; connections outlive the listener.
void connections_outlive_their_listener(Side& side) {
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  const Handle peer = side.hear<Handle>();
  std::vector<Link> links;
  for (int i = 0; i < 3; ++i) {
    links.push_back(side.link_through(listener, peer));
    side.barrier();
  }
  exchange(side, links[0], {1000});
  REQUIRE(side.net.close_listen(listener) == Result::success);
  for (const Link& link : links) exchange(side, link, {0, 100, 100000});
  side.barrier();
  for (const Link& link : links) side.unlink(link);
  side.stop();
}

// Each side uses another device, because device numbers are local to a process.
void each_side_has_its_own_device(Side& side) {
  side.start();
  int count = 0;
  REQUIRE(side.net.devices(&count) == Result::success);
  REQUIRE(count >= 2);
  for (int device = 0; device < count; ++device) {
    for (int other = 0; other < count; ++other) {
      const Link link = side.link(device, side.rank == 0 ? other : count - 1 - other);
      exchange(side, link, {0, 100, 50000});
      side.barrier();
      side.unlink(link);
    }
  }
  Handle handle;
  void* comm = nullptr;
  REQUIRE(side.net.listen(side.context, count, handle.bytes, &comm) != Result::success && comm == nullptr);
  // A handle begins with a magic number; the plugin refuses handles without it.
  for (const std::size_t at : {0, 1, 3, 4, 7}) {
    void* const listener = side.listen(handle.bytes, count - 1);
    handle.bytes[at] = static_cast<std::uint8_t>(handle.bytes[at] ^ 0x55);
    REQUIRE(side.net.connect(side.context, 0, handle.bytes, &comm) != Result::success && comm == nullptr);
    REQUIRE(side.net.close_listen(listener) == Result::success);
  }
  side.stop();
}

bool is_mapped(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && address >= begin && address < end) return true;
  }
  return false;
}

// A handle can be sent to another host: listen writes at most 128 bytes, no pointers, and zeros in unused bytes.
void a_handle_is_plain_bytes(Side& side) {
  side.start();
  constexpr std::size_t bytes = weft::nccl::kHandleBytesMax;
  std::vector<std::uint8_t> handles[2];
  void* listeners[2] = {};
  for (int i = 0; i < 2; ++i) {
    handles[i].assign(bytes + 64, i == 0 ? 0x5A : 0xA5);
    REQUIRE(side.net.listen(side.context, 0, handles[i].data(), &listeners[i]) == Result::success);
    const auto untouched = [&](std::uint8_t byte) { return byte == (i == 0 ? 0x5A : 0xA5); };
    REQUIRE(std::all_of(handles[i].begin() + bytes, handles[i].end(), untouched));
    REQUIRE(std::all_of(handles[i].begin() + weft::control::kHandleBytes, handles[i].begin() + bytes,
                        [](auto byte) { return byte == 0; }));
    for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, handles[i].data() + at, 8);
      REQUIRE(!is_mapped(word));
    }
  }
  REQUIRE(!std::equal(handles[0].begin(), handles[0].begin() + bytes, handles[1].begin()));
  // connect may keep its own state in the second half of the handle, but must not write behind the handle.
  std::vector<std::uint8_t> guarded = handles[0];
  void* comm = nullptr;
  REQUIRE(side.net.connect(side.context, 0, guarded.data(), &comm) == Result::success);
  REQUIRE(std::equal(guarded.begin(), guarded.begin() + 64, handles[0].begin()));
  REQUIRE(std::equal(guarded.begin() + bytes, guarded.end(), handles[0].begin() + bytes));
  void* received = nullptr;
  const Deadline deadline;
  while (comm == nullptr || received == nullptr) {
    REQUIRE(!deadline.over());
    if (comm == nullptr) REQUIRE(side.net.connect(side.context, 0, guarded.data(), &comm) == Result::success);
    if (received == nullptr) REQUIRE(side.net.accept(listeners[0], &received) == Result::success);
  }
  for (void* const listener : listeners) REQUIRE(side.net.close_listen(listener) == Result::success);
  side.unlink({comm, received});
  side.stop();
}

// getProperties fills the whole struct, which NCCL passes uninitialised, from two threads; NCCL keeps its pointers.
void every_property_is_filled(Side& side) {
  side.start();
  int count = 0;
  REQUIRE(side.net.devices(&count) == Result::success && count > 0);
  const auto ask = [&] {
    for (int round = 0; round < 200; ++round) {
      for (int device = 0; device < count; ++device) {
        REQUIRE(side.net.raw_properties(device, 0xAA) == side.net.raw_properties(device, 0x55));
      }
    }
  };
  std::thread other(ask);
  ask();
  other.join();
  const std::vector<unsigned char> before = side.net.raw_properties(0, 0);
  void* second = nullptr;
  REQUIRE(side.net.init(&second) == Result::success);
  REQUIRE(side.net.finalize(second) == Result::success);
  REQUIRE(side.net.raw_properties(0, 0) == before);
  side.barrier();
  side.stop();
}

// From version 11 on, each communicator has an init, whose context serves any device; a communicator that is split from
// it uses its context. Older versions have one init and no context.
void contexts_serve_any_device(Side& side) {
  side.start();
  int count = 0;
  REQUIRE(side.net.devices(&count) == Result::success);
  Side second = side;
  second.start();
  REQUIRE(second.context != nullptr && second.context != side.context);
  const Link first_link = side.link();
  const Link second_link = second.link(count - 1, 0);
  const Link split_link = second.link(0, count - 1);
  side.barrier();
  side.unlink(first_link);
  side.stop();
  exchange(second, second_link, {0, 1000});
  exchange(second, split_link, {0, 1000});
  second.barrier();
  second.unlink(second_link);
  second.unlink(split_link);
  second.stop();
}

}  // namespace

const Scenarios& setup_scenarios() {
  static const Scenarios all = {
      {"attempts_keep_apart_and_end", attempts_keep_apart_and_end},
      {"peers_come_early_late_and_in_vain", peers_come_early_late_and_in_vain},
      {"abandoned_connects_end_with_the_listener", abandoned_connects_end_with_the_listener},
      {"connections_outlive_their_listener", connections_outlive_their_listener},
      {"threads_connect_to_themselves", threads_connect_to_themselves},
      {"each_side_has_its_own_device", each_side_has_its_own_device},
      {"a_handle_is_plain_bytes", a_handle_is_plain_bytes},
      {"every_property_is_filled", every_property_is_filled},
      {"contexts_serve_any_device", contexts_serve_any_device},
  };
  return all;
}

}  // namespace host
