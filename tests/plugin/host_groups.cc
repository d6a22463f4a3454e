// Scenarios with grouped receives: one irecv has several buffers, and each takes the send with its tag. They need
// WEFT_NCCL_RECEIVES_MAX=8, and run on the fake runtime too.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "native/control/handle.h"
#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

constexpr std::size_t kGroupMost = 8;

// A send that is repeated until the plugin accepts it.
struct Wanted {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  void* request = nullptr;
  bool done = false;
};

// A grouped receive that is tested until it is done.
struct Awaited {
  void* request = nullptr;
  int sizes[64] = {};
  bool done = false;
};

bool tested(Side& side, void* request, int* sizes) {
  int done = 77;
  REQUIRE(side.net.test(request, &done, sizes) == Result::success);
  REQUIRE(done == 0 || done == 1);
  return done == 1;
}

// Offers sends, again and again, until all are accepted; one that is not holds up no other.
void send_all(Side& side, void* comm, std::vector<Wanted>* sends) {
  const Deadline deadline;
  for (std::size_t accepted = 0; accepted < sends->size();) {
    REQUIRE(!deadline.over());
    for (Wanted& each : *sends) {
      if (each.request != nullptr) continue;
      each.request = reinterpret_cast<void*>(0xDEAD0);
      REQUIRE(side.net.isend(comm, each.data, each.bytes, nullptr, &each.request, each.tag) == Result::success);
      if (each.request != nullptr) ++accepted;
    }
  }
}

// Offers sends and tests them until all are done. As NCCL does, tests receives meanwhile: the plugin may need that to
// post the rest of a group.
void send_and_finish(Side& side, void* comm, std::vector<Wanted>* sends, std::vector<Awaited>* receives) {
  const Deadline deadline;
  const auto is_done = [](const auto& each) { return each.done; };
  while (!std::all_of(sends->begin(), sends->end(), is_done)) {
    REQUIRE(!deadline.over());
    for (Wanted& each : *sends) {
      if (each.request == nullptr) {
        REQUIRE(side.net.isend(comm, each.data, each.bytes, nullptr, &each.request, each.tag) == Result::success);
      } else if (int size = -1; !each.done && tested(side, each.request, &size)) {
        REQUIRE(size == static_cast<int>(each.bytes));
        each.done = true;
      }
    }
    for (Awaited& each : *receives) each.done = each.done || tested(side, each.request, each.sizes);
  }
}

void* receive_group(Side& side, void* comm, std::vector<Place> places) {
  const Deadline deadline;
  for (;;) {
    auto* request = reinterpret_cast<void*>(0xDEAD0);
    REQUIRE(side.net.irecv_group(comm, &places, &request) == Result::success);
    if (request != nullptr) return request;
    REQUIRE(!deadline.over());
  }
}

std::size_t bytes_of(int tag) { return static_cast<std::size_t>(tag) * 3001 % 70000; }

// The order in which the peers of one group send does not matter, and a send of the next group waits for its turn.
void groups_match_tags(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t capacity = 70000;
    constexpr int tags = 9;
    Buffer memory(capacity * tags);
    const auto at = [&](int tag) { return memory.data() + capacity * static_cast<std::size_t>(tag); };
    if (side.rank == 0) {
      std::vector<Wanted> sends;
      for (const int tag : {0, 8, 1, 3, 2, 7, 6, 5, 4}) {
        fill(at(tag), bytes_of(tag), static_cast<std::size_t>(tag));
        sends.push_back({at(tag), bytes_of(tag), tag});
      }
      send_all(side, link.send, &sends);
      for (const Wanted& each : sends) side.finish(each.request, each.bytes);
      return;
    }
    std::vector<Place> places;
    for (int tag = 0; tag < 8; ++tag) places.push_back({at(tag), capacity, tag});
    void* const first = receive_group(side, link.receive, {{at(8), capacity, 8}});
    void* const second = receive_group(side, link.receive, places);
    side.finish(first, bytes_of(8));
    int sizes[64] = {};
    REQUIRE(side.outcome(second, sizes) == Result::success);
    for (int tag = 0; tag < tags; ++tag) {
      if (tag < 8) REQUIRE(sizes[tag] == static_cast<int>(bytes_of(tag)));
      REQUIRE(holds(at(tag), bytes_of(tag), static_cast<std::size_t>(tag)));
    }
    REQUIRE(std::all_of(sizes + 8, sizes + 64, [](int size) { return size == 0; }));
  });
}

// Groups of any size, in both directions at once, whose sends come in any order within a group. Tags repeat.
void groups_of_any_size_and_order(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t capacity = 5000;
    std::mt19937 chance(77);  // the same on both sides
    for (int round = 0; round < 40; ++round) {
      const std::size_t groups = 1 + chance() % 16;
      Buffer in(capacity * kGroupMost * groups);
      Buffer out(capacity * kGroupMost * groups);
      std::vector<std::vector<Place>> places(groups);
      std::vector<Wanted> sends;
      for (std::size_t group = 0; group < groups; ++group) {
        const std::size_t count = 1 + chance() % kGroupMost;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t place = group * kGroupMost + i;
          const auto tag = static_cast<int>(chance() % 3 + i * 3) - 5;
          places[group].push_back({in.data() + capacity * place, capacity, tag});
          const std::size_t bytes = chance() % (capacity + 1);
          fill(out.data() + capacity * place, bytes, place);
          sends.push_back({out.data() + capacity * place, bytes, tag});
        }
      }
      std::vector<Awaited> receives(groups);
      for (std::size_t group = 0; group < groups; ++group) {
        receives[group].request = receive_group(side, link.receive, places[group]);
      }
      for (std::size_t group = 0, begin = 0; group < groups; begin += places[group++].size()) {
        const auto first = sends.begin() + static_cast<std::ptrdiff_t>(begin);
        std::vector<Wanted> mine(first, first + static_cast<std::ptrdiff_t>(places[group].size()));
        std::shuffle(mine.begin(), mine.end(), chance);
        send_and_finish(side, link.send, &mine, &receives);
      }
      for (std::size_t group = 0, begin = 0; group < groups; begin += places[group++].size()) {
        Awaited& receive = receives[group];
        if (!receive.done) REQUIRE(side.outcome(receive.request, receive.sizes) == Result::success);
        for (std::size_t i = 0; i < places[group].size(); ++i) {
          const std::size_t bytes = sends[begin + i].bytes;
          REQUIRE(receive.sizes[i] == static_cast<int>(bytes));
          REQUIRE(holds(static_cast<std::uint8_t*>(places[group][i].data), bytes, group * kGroupMost + i));
        }
      }
    }
  });
}

// NCCL offers all groups of a connection in turn, whether or not one before was accepted.
void groups_take_turns(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t capacity = 1000;
    for (int round = 0; round < 20; ++round) {
      Buffer in(capacity * 2 * kGroupMost);
      Buffer out(capacity * 2 * kGroupMost);
      std::vector<std::vector<Place>> groups(2);
      std::vector<Wanted> sends;
      for (std::size_t i = 0; i < 2 * kGroupMost; ++i) {
        groups[i / kGroupMost].push_back({in.data() + capacity * i, capacity, static_cast<int>(i)});
        fill(out.data() + capacity * i, capacity - i, i);
        sends.push_back({out.data() + capacity * i, capacity - i, static_cast<int>(i)});
      }
      std::vector<Awaited> receives(2);
      const Deadline deadline;
      while (receives[0].request == nullptr || receives[1].request == nullptr) {
        REQUIRE(!deadline.over());
        for (std::size_t group = 0; group < 2; ++group) {
          if (receives[group].request != nullptr) continue;
          REQUIRE(side.net.irecv_group(link.receive, &groups[group], &receives[group].request) == Result::success);
        }
      }
      send_and_finish(side, link.send, &sends, &receives);
      for (Awaited& each : receives) {
        if (!each.done) REQUIRE(side.outcome(each.request, each.sizes) == Result::success);
      }
      for (std::size_t i = 0; i < 2 * kGroupMost; ++i) REQUIRE(holds(in.data() + capacity * i, capacity - i, i));
    }
  });
}

// Ends that group differently would share connections differently in NCCL, and one would wait for ever.
void groups_must_be_agreed(Side& side) {
  if (side.rank == 1) ::unsetenv("WEFT_NCCL_RECEIVES_MAX");
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  Handle peer = side.hear<Handle>();
  void* comm = nullptr;
  REQUIRE(side.net.connect(side.context, 0, peer.bytes, &comm) == Result::invalid_argument && comm == nullptr);
  side.barrier();
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.stop();
}

// A peer that is told to group but sends other bytes than tags: the send fails, and the process goes on.
void groups_refuse_wrong_tags(Side& side) {
  constexpr std::size_t grouped_at = weft::control::kHandleBytes + 3 * sizeof(std::uint64_t);  // as in plugin/setup.cc
  if (side.rank == 1) ::unsetenv("WEFT_NCCL_RECEIVES_MAX");
  side.start();
  std::vector<std::uint8_t> wrong[] = {std::vector<std::uint8_t>(36, 0),
                                       std::vector<std::uint8_t>(36, 0xFF),
                                       std::vector<std::uint8_t>(36, 9),
                                       std::vector<std::uint8_t>(4, 1),
                                       {}};
  for (std::vector<std::uint8_t>& bytes : wrong) {
    Handle own;
    void* const listener = side.listen(own.bytes);
    side.tell(own);
    Handle peer = side.hear<Handle>();
    std::uint8_t byte = 0;
    void* comm = nullptr;
    const Deadline deadline;
    if (side.rank == 0) {
      peer.bytes[grouped_at] = 1;
      while (comm == nullptr) {
        REQUIRE(!deadline.over());
        REQUIRE(side.net.connect(side.context, 0, peer.bytes, &comm) == Result::success);
      }
      Result result = Result::success;
      while (result == Result::success) {
        REQUIRE(!deadline.over());
        void* request = nullptr;
        result = side.net.isend(comm, &byte, 1, nullptr, &request);
        REQUIRE(request == nullptr);
      }
      REQUIRE(result == Result::internal_error);
    } else {
      while (comm == nullptr) {
        REQUIRE(!deadline.over());
        REQUIRE(side.net.accept(listener, &comm) == Result::success);
      }
      side.send(comm, bytes.data(), bytes.size(), nullptr);
    }
    side.barrier();
    REQUIRE(side.net.close_send(comm) == Result::success);
    REQUIRE(side.net.close_listen(listener) == Result::success);
  }
  side.barrier();
  side.stop();
}

// A send whose tag no buffer of the oldest group has is not accepted, and takes no buffer.
void a_send_waits_for_its_tag(Side& side) {
  on_a_link(side, [&](const Link& link) {
    Buffer memory(300);
    if (side.rank == 1) {
      void* const first = receive_group(side, link.receive, {{memory.data(), 100, 1}, {memory.data() + 100, 100, 2}});
      void* const second = receive_group(side, link.receive, {{memory.data() + 200, 100, 3}});
      side.barrier();
      int sizes[64] = {};
      REQUIRE(side.outcome(first, sizes) == Result::success && sizes[0] == 10 && sizes[1] == 20);
      side.finish(second, 30);
      for (std::size_t i = 0; i < 3; ++i) REQUIRE(holds(memory.data() + 100 * i, 10 * (i + 1), i));
      return;
    }
    for (std::size_t i = 0; i < 3; ++i) fill(memory.data() + 100 * i, 100, i);
    std::vector<Wanted> early = {{memory.data() + 100, 20, 2}};
    send_all(side, link.send, &early);
    for (int i = 0; i < 100; ++i) {
      for (const int tag : {2, 3, 4}) {
        void* request = reinterpret_cast<void*>(0xDEAD0);
        REQUIRE(side.net.isend(link.send, memory.data(), 10, nullptr, &request, tag) == Result::success);
        REQUIRE(request == nullptr);
      }
      int done = 77;
      REQUIRE(side.net.test(early[0].request, &done, nullptr) == Result::success && done == 0);
    }
    side.barrier();
    std::vector<Wanted> rest = {{memory.data(), 10, 1}, {memory.data() + 200, 30, 3}};
    send_all(side, link.send, &rest);
    side.finish(early[0].request, 20);
    side.finish(rest[0].request, 10);
    side.finish(rest[1].request, 30);
  });
}

// As close_outstanding, with groups that miss a send, and sends that wait for others of their group.
void groups_close_outstanding(Side& side) {
  constexpr std::size_t bytes = 1 << 16;
  side.start();
  for (int round = 0; round < 4; ++round) {
    const Link link = side.link();
    auto in = std::make_unique<Buffer>(bytes * kOutstanding);
    auto out = std::make_unique<Buffer>(bytes);
    void* in_handle = nullptr;
    void* out_handle = nullptr;
    REQUIRE(side.net.reg(link.receive, in->data(), bytes * kOutstanding, &in_handle) == Result::success);
    REQUIRE(side.net.reg(link.send, out->data(), bytes, &out_handle) == Result::success);
    for (std::size_t group = 0; group < 4; ++group) {
      std::vector<Place> places;
      for (std::size_t i = 0; i < kGroupMost; ++i) {
        places.push_back({in->data() + bytes * (group * kGroupMost + i), bytes, static_cast<int>(i), in_handle});
      }
      receive_group(side, link.receive, places);
    }
    void* request = nullptr;
    const Deadline deadline;
    while (request == nullptr) {  // tag 7 is the last of its group, so this send is held
      REQUIRE(!deadline.over());
      REQUIRE(side.net.isend(link.send, out->data(), bytes, out_handle, &request, 7) == Result::success);
    }
    side.barrier();
    if (round % 2 == 1) REQUIRE(side.net.dereg(link.send, out_handle) == Result::success);
    REQUIRE(side.net.dereg(link.receive, in_handle) == Result::success);
    if (round % 2 == 0) REQUIRE(side.net.dereg(link.send, out_handle) == Result::success);
    in.reset();
    out.reset();
    int done = 77;
    static_cast<void>(side.net.test(request, &done, nullptr));
    REQUIRE(done == 0);
    side.unlink(link);
    side.barrier();
  }
  const Link link = side.link();
  exchange(side, link, {1000, 0});
  side.barrier();
  side.unlink(link);
  side.stop();
}

// A group fails with the connection, and so does a send that waits for others of its group.
void groups_fail_with_the_peer(Side& side) {
  side.start();
  const Link link = side.link();
  Buffer memory(200);
  void* const group = receive_group(side, link.receive, {{memory.data(), 100, 1}, {memory.data() + 100, 100, 2}});
  std::vector<Wanted> held = {{memory.data(), 50, 2}};
  send_all(side, link.send, &held);
  side.barrier();
  if (side.rank == 0) {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(side.outcome(held[0].request, nullptr) == Result::remote_error);
      REQUIRE(side.outcome(group, nullptr) == Result::remote_error);
    }
  }
  side.unlink(link);
  side.barrier();
  side.stop();
}

void groups_refuse_wrong_arguments(Side& side) {
  on_a_link(side, [&](const Link& link) {
    std::uint8_t byte = 0;
    void* request = reinterpret_cast<void*>(0xDEAD0);
    for (const std::size_t count : {std::size_t{0}, std::size_t{9}}) {
      std::vector<Place> places(count, Place{&byte, 1, 1});
      REQUIRE(side.net.irecv_group(link.receive, &places, &request) == Result::invalid_argument);
      REQUIRE(request == nullptr);
      request = reinterpret_cast<void*>(0xDEAD0);
    }
    std::vector<Place> places = {{&byte, 1, 1}, {nullptr, 1, 2}};
    REQUIRE(side.net.irecv_group(link.receive, &places, &request) == Result::invalid_argument && request == nullptr);
    places = {{&byte, 1, 1}};
    REQUIRE(side.net.irecv_group(link.send, &places, &request) == Result::invalid_argument && request == nullptr);
    REQUIRE(side.net.isend(link.receive, &byte, 1, nullptr, &request) == Result::invalid_argument);
    REQUIRE(request == nullptr);
    exchange(side, link, {0, 1000});
  });
}

}  // namespace

const Scenarios& group_scenarios() {
  static const Scenarios all = {
      {"groups_match_tags", groups_match_tags},
      {"groups_of_any_size_and_order", groups_of_any_size_and_order},
      {"groups_take_turns", groups_take_turns},
      {"groups_must_be_agreed", groups_must_be_agreed},
      {"groups_refuse_wrong_tags", groups_refuse_wrong_tags},
      {"a_send_waits_for_its_tag", a_send_waits_for_its_tag},
      {"groups_close_outstanding", groups_close_outstanding},
      {"groups_fail_with_the_peer", groups_fail_with_the_peer},
      {"groups_refuse_wrong_arguments", groups_refuse_wrong_arguments},
  };
  return all;
}

}  // namespace host
