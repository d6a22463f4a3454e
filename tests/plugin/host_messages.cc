// Scenarios for messages, requests and registrations, as NCCL uses them beyond its headers;
// README.md lists the points. None needs two processes, so all run on the fake runtime too.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

constexpr std::uintptr_t kGarbage = 0xDEAD0;

// isend and irecv always write *request; test always writes *done (Side::outcome checks *done).
void requests_are_always_written(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr int attempts = 400;
    Buffer out(64);
    Buffer in(64);
    void* of_out = nullptr;
    void* of_in = nullptr;
    REQUIRE(side.net.reg(link.send, out.data(), 64, &of_out) == Result::success);
    REQUIRE(side.net.reg(link.receive, in.data(), 64, &of_in) == Result::success);
    fill(out.data(), 64, 5);
    const auto post = [&](bool sends) {
      std::vector<void*> taken;
      bool refused = false;
      for (int i = 0; i < attempts; ++i) {
        auto* request = reinterpret_cast<void*>(kGarbage);
        const Result result = sends ? side.net.isend(link.send, out.data(), 64, of_out, &request)
                                    : side.net.irecv(link.receive, in.data(), 64, of_in, &request);
        REQUIRE(result == Result::success && request != reinterpret_cast<void*>(kGarbage));
        if (request == nullptr) refused = true;
        if (request != nullptr) taken.push_back(request);
      }
      REQUIRE(refused && taken.size() >= kOutstanding);
      return taken;
    };
    const std::vector<void*> sends = post(true);
    side.barrier();
    const std::vector<void*> receives = post(false);
    side.tell(std::array<std::size_t, 2>{sends.size(), receives.size()});
    const auto peer = side.hear<std::array<std::size_t, 2>>();
    for (std::size_t i = 0; i < std::min(receives.size(), peer[0]); ++i) side.finish(receives[i], 64);
    for (std::size_t i = 0; i < std::min(sends.size(), peer[1]); ++i) side.finish(sends[i], 64);
    REQUIRE(holds(in.data(), 64, 5));
    REQUIRE(side.net.dereg(link.send, of_out) == Result::success);
    REQUIRE(side.net.dereg(link.receive, of_in) == Result::success);
  });
}

// NCCL may pass *request as 1 for a receive whose completion it does not need.
void the_hint_of_a_receive_is_overwritten(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr auto hint = weft::nccl::kOptionalCompletion;
    auto* request = reinterpret_cast<void*>(hint);
    REQUIRE(side.net.irecv_count(link.receive, 2, &request) == Result::invalid_argument && request == nullptr);
    std::vector<void*> taken;
    Buffer memory(8);
    bool refused = false;
    for (int i = 0; i < 400 && !refused; ++i) {
      request = reinterpret_cast<void*>(hint);
      REQUIRE(side.net.irecv(link.receive, memory.data(), 8, nullptr, &request) == Result::success);
      REQUIRE(request != reinterpret_cast<void*>(hint));
      refused = request == nullptr && taken.size() >= kOutstanding;
      if (request != nullptr) taken.push_back(request);
    }
    REQUIRE(refused);
    side.tell(taken.size());
    for (auto left = side.hear<std::size_t>(); left > 0; --left) {
      std::uint8_t byte = 1;
      side.finish(side.send(link.send, &byte, 1, nullptr), 1);
    }
    for (void* const each : taken) side.finish(each, 1);
    exchange(side, link, {0, 8, 100000}, hint);
  });
}

// Empty messages match receives in order like others, with any buffer and registration.
void empty_messages_keep_their_turn(Side& side) {
  on_a_link(side, [&](const Link& link) {
    const std::vector<std::size_t> sizes = {0, 5, 0, 0, 200000, 0, 8193, 0};
    Buffer out(200000);
    Buffer in(200000 * sizes.size());
    Buffer elsewhere(64);
    void* of_elsewhere = nullptr;
    REQUIRE(side.net.reg(link.send, elsewhere.data(), 64, &of_elsewhere) == Result::success);
    fill(out.data(), 200000, 1);
    std::vector<void*> receives;
    std::vector<void*> sends;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool empty = sizes[i] == 0;
      // Some empty messages have no buffer, and some a registration that does not cover it.
      std::uint8_t* const to = empty && i % 2 == 0 ? nullptr : in.data() + 200000 * i;
      receives.push_back(side.receive(link.receive, to, to == nullptr ? 0 : 200000, nullptr));
      sends.push_back(
          side.send(link.send, empty && i % 2 == 0 ? nullptr : out.data(), sizes[i], empty ? of_elsewhere : nullptr));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      side.finish(receives[i], sizes[i]);
      REQUIRE(holds(in.data() + 200000 * i, sizes[i], 1));
      side.finish(sends[i], sizes[i]);
    }
    auto* request = reinterpret_cast<void*>(kGarbage);
    REQUIRE(side.net.iflush(link.receive, &request) == Result::success && request == nullptr);
    REQUIRE(side.net.dereg(link.send, of_elsewhere) == Result::success);
  });
}

// A receive may be larger than its message: test reports the message's size.
void sizes_are_those_of_the_messages(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t capacity = 1 << 20;
    for (const std::size_t bytes : {0, 1, 4096, 8192, 8193, 300000, 1 << 20}) {
      Buffer out(capacity);
      Buffer in(capacity);
      fill(out.data(), bytes, bytes);
      void* const receive = side.receive(link.receive, in.data(), capacity, nullptr);
      void* const send = side.send(link.send, out.data(), bytes, nullptr);
      side.finish(receive, bytes);
      side.finish(send, bytes);
      REQUIRE(holds(in.data(), bytes, bytes));
      REQUIRE(std::all_of(in.data() + bytes, in.data() + capacity, [](std::uint8_t byte) { return byte == 0; }));
    }
  });
}

// The plugin may reuse a completed request, because NCCL does not test it again; NCCL tests in any order.
void done_requests_are_used_again(Side& side) {
  on_a_link(side, [&](const Link& link) {
    std::set<void*> seen;
    Buffer out(8 * kOutstanding);
    Buffer in(8 * kOutstanding);
    for (std::size_t round = 0; round < 30; ++round) {
      fill(out.data(), 8 * kOutstanding, round);
      std::vector<void*> receives;
      std::vector<void*> sends;
      for (std::size_t i = 0; i < kOutstanding; ++i) {
        receives.push_back(side.receive(link.receive, in.data() + 8 * i, 8, nullptr));
        sends.push_back(side.send(link.send, out.data() + 8 * i, 8, nullptr));
      }
      seen.insert(receives.begin(), receives.end());
      // Test requests in reverse order in one round, in strides in the next.
      for (std::size_t i = 0; i < kOutstanding; ++i) {
        const std::size_t at = round % 2 == 0 ? kOutstanding - 1 - i : i * 5 % kOutstanding;
        side.finish(receives[at], 8);
        side.finish(sends[at], 8);
      }
      REQUIRE(holds(in.data(), 8 * kOutstanding, round));
    }
    REQUIRE(seen.size() <= 4 * kOutstanding);
  });
}

// NCCL passes test no sizes for its bootstrap, one int for sends, and more for receives.
void sizes_may_be_left_out(Side& side) {
  on_a_link(side, [&](const Link& link) {
    Buffer out(3000);
    Buffer in(3000);
    for (const bool wanted : {false, true}) {
      void* const receive = side.receive(link.receive, in.data(), 3000, nullptr);
      void* const send = side.send(link.send, out.data(), 3000, nullptr);
      int of_send[2] = {-1, 77};
      int of_receive[64] = {};
      REQUIRE(side.outcome(receive, wanted ? of_receive : nullptr) == Result::success);
      REQUIRE(side.outcome(send, wanted ? of_send : nullptr) == Result::success);
      if (!wanted) continue;
      REQUIRE(of_send[0] == 3000 && of_send[1] == 77);
      REQUIRE(of_receive[0] == 3000 &&
              std::all_of(of_receive + 1, of_receive + 64, [](int size) { return size == 0; }));
    }
  });
}

// NCCL makes no calls while it is idle, so acknowledgments and resends must happen without calls. A
// completed send no longer uses its buffer. Tests run it with losses, so that there are resends.
void progress_needs_no_calls(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t bytes = 60000;
    Buffer memory(bytes * kOutstanding);
    std::vector<void*> requests;
    // Rank 0 sends and waits; rank 1 makes no calls between the arrival of all messages and the barrier.
    for (std::size_t i = 0; i < kOutstanding; ++i) {
      std::uint8_t* const data = memory.data() + bytes * i;
      if (side.rank == 0) fill(data, bytes, i);
      requests.push_back(side.rank == 0 ? side.send(link.send, data, bytes, nullptr)
                                        : side.receive(link.receive, data, bytes, nullptr));
    }
    for (std::size_t i = 0; i < kOutstanding; ++i) {
      side.finish(requests[i], bytes);
      if (side.rank == 0) std::memset(memory.data() + bytes * i, 0xEE, bytes);
    }
    side.barrier();
    for (std::size_t i = 0; side.rank == 1 && i < kOutstanding; ++i) {
      REQUIRE(holds(memory.data() + bytes * i, bytes, i));
    }
    // Rank 0 posts and makes no calls until rank 1 has received everything.
    if (side.rank == 0) {
      fill(memory.data(), bytes, 9);
      void* const request = side.send(link.send, memory.data(), bytes, nullptr);
      side.barrier();
      side.finish(request, bytes);
    } else {
      side.finish(side.receive(link.receive, memory.data(), bytes, nullptr), bytes);
      REQUIRE(holds(memory.data(), bytes, 9));
      side.barrier();
    }
  });
}

// Once test reports done, the bytes are visible to other threads: NCCL sets a flag for its kernels.
void received_bytes_are_there_when_done(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t rounds = 60;
    constexpr std::size_t bytes = 30000;
    Buffer out(bytes);
    Buffer in(bytes * rounds);
    std::atomic<std::size_t> tail{0};
    std::thread reader([&] {
      for (std::size_t i = 0; i < rounds; ++i) {
        const Deadline deadline;
        while (tail.load(std::memory_order_acquire) <= i) {
          REQUIRE(!deadline.over());
          std::this_thread::yield();
        }
        REQUIRE(holds(in.data() + bytes * i, bytes - i, i));
      }
    });
    for (std::size_t i = 0; i < rounds; ++i) {
      fill(out.data(), bytes, i);
      void* const receive = side.receive(link.receive, in.data() + bytes * i, bytes, nullptr);
      void* const send = side.send(link.send, out.data(), bytes - i, nullptr);
      side.finish(receive, bytes - i);
      tail.store(i + 1);
      side.finish(send, bytes - i);
    }
    reader.join();
  });
}

// Registers memory twice; one registration ends while a message uses the other.
void a_registration_goes_alone(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t bytes = 100000;
    Buffer out(bytes);
    Buffer in(bytes);
    fill(out.data(), bytes, 4);
    void* kept_in = nullptr;
    void* kept_out = nullptr;
    REQUIRE(side.net.reg(link.receive, in.data(), bytes, &kept_in) == Result::success);
    REQUIRE(side.net.reg(link.send, out.data(), bytes, &kept_out) == Result::success);
    for (int round = 0; round < 5; ++round) {
      void* of_in = nullptr;
      void* of_out = nullptr;
      REQUIRE(side.net.reg(link.receive, in.data() + 10, bytes - 10, &of_in) == Result::success);
      REQUIRE(side.net.reg(link.send, out.data(), bytes / 2, &of_out) == Result::success);
      void* const receive = side.receive(link.receive, in.data(), bytes, kept_in);
      REQUIRE(side.net.dereg(link.receive, of_in) == Result::success);
      side.barrier();
      void* const send = side.send(link.send, out.data(), bytes, kept_out);
      REQUIRE(side.net.dereg(link.send, of_out) == Result::success);
      side.finish(receive, bytes);
      side.finish(send, bytes);
      REQUIRE(holds(in.data(), bytes, 4));
    }
    REQUIRE(side.net.dereg(link.receive, kept_in) == Result::success);
    REQUIRE(side.net.dereg(link.send, kept_out) == Result::success);
  });
}

// Registrations may have any address and length, overlap and repeat; none has a null handle. Device
// memory is refused, as the properties declare.
void any_part_of_memory_registers(Side& side) {
  on_a_link(side, [&](const Link& link) {
    constexpr std::size_t bytes = 100000;
    Buffer out(bytes);
    Buffer in(bytes);
    fill(out.data(), bytes, 2);
    struct Part {
      std::size_t at, bytes;
    };
    const std::vector<Part> parts = {{0, bytes}, {0, bytes}, {1, 1}, {4095, 2}, {7, 50001}, {50000, 49999}};
    std::vector<void*> of_out;
    std::vector<void*> of_in;
    for (const Part& part : parts) {
      void* mhandle = nullptr;
      REQUIRE(side.net.reg(link.send, out.data() + part.at, part.bytes, &mhandle) == Result::success);
      of_out.push_back(mhandle);
      REQUIRE(side.net.reg(link.receive, in.data() + part.at, part.bytes, &mhandle) == Result::success);
      of_in.push_back(mhandle);
    }
    std::set<void*> distinct(of_out.begin(), of_out.end());
    distinct.insert(of_in.begin(), of_in.end());
    REQUIRE(distinct.size() == 2 * parts.size() && distinct.count(nullptr) == 0);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      std::memset(in.data(), 0, bytes);
      void* const receive = side.receive(link.receive, in.data() + part.at, part.bytes, of_in[i]);
      void* const send = side.send(link.send, out.data() + part.at, part.bytes, of_out[i]);
      side.finish(receive, part.bytes);
      side.finish(send, part.bytes);
      REQUIRE(std::memcmp(in.data() + part.at, out.data() + part.at, part.bytes) == 0);
      REQUIRE(side.net.dereg(link.send, of_out[i]) == Result::success);
      REQUIRE(side.net.dereg(link.receive, of_in[i]) == Result::success);
    }
    void* mhandle = nullptr;
    REQUIRE(side.net.reg_cuda(link.send, out.data(), bytes, &mhandle) != Result::success && mhandle == nullptr);
  });
}

}  // namespace

const Scenarios& message_scenarios() {
  static const Scenarios all = {
      {"requests_are_always_written", requests_are_always_written},
      {"the_hint_of_a_receive_is_overwritten", the_hint_of_a_receive_is_overwritten},
      {"empty_messages_keep_their_turn", empty_messages_keep_their_turn},
      {"sizes_are_those_of_the_messages", sizes_are_those_of_the_messages},
      {"done_requests_are_used_again", done_requests_are_used_again},
      {"sizes_may_be_left_out", sizes_may_be_left_out},
      {"progress_needs_no_calls", progress_needs_no_calls},
      {"received_bytes_are_there_when_done", received_bytes_are_there_when_done},
      {"a_registration_goes_alone", a_registration_goes_alone},
      {"any_part_of_memory_registers", any_part_of_memory_registers},
  };
  return all;
}

}  // namespace host
