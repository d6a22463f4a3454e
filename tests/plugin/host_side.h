// One side of a scenario: polled connects and requests, and memory that is unmapped when freed.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/plugin/host_net.h"

namespace host {

inline constexpr auto kPatience = std::chrono::seconds(60);
inline constexpr std::size_t kOutstanding = 32;

class Deadline {
 public:
  bool over() const { return Clock::now() > end_; }

 private:
  Clock::time_point end_ = Clock::now() + kPatience;
};

// Memory that is unmapped when freed, so that a late write crashes.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory_ != MAP_FAILED);
  }
  ~Buffer() { munmap(memory_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* data() { return static_cast<std::uint8_t*>(memory_); }

 private:
  void* memory_;
  std::size_t bytes_;
};

inline std::uint8_t pattern(std::size_t seed, std::size_t i) {
  return static_cast<std::uint8_t>((seed * 131) ^ (i * 2654435761U >> 13) ^ i);
}
inline void fill(std::uint8_t* data, std::size_t bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(seed, i);
}
inline bool holds(const std::uint8_t* data, std::size_t bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern(seed, i)) return false;
  }
  return true;
}

struct Link {
  void* send = nullptr;
  void* receive = nullptr;
};

struct Handle {
  std::uint8_t bytes[weft::nccl::kHandleBytesMax];
};

// Another process of the scenario, for rank 0.
struct Peer {
  pid_t pid = -1;
  int channel = -1;
  bool killed = false;  // its exit does not count as a failure
};

// One side: its own context of the plugin, and a pipe to the other side that is independent of it.
struct Side {
  Net& net;
  int channel;
  int rank;
  void* context = nullptr;
  std::vector<Peer>* peers = nullptr;  // set for rank 0 if ranks are processes; peers[0] is rank 1

  // A copy of this side that uses the pipe to the given rank.
  Side towards(int other) const {
    Side side = *this;
    side.channel = (*peers)[static_cast<std::size_t>(other) - 1].channel;
    return side;
  }

  // write_all and read_all continue after a signal.
  void write_all(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t count = ::send(channel, from, bytes, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      REQUIRE(count > 0);
      from += count;
      bytes -= static_cast<std::size_t>(count);
    }
  }
  void read_all(void* data, std::size_t bytes) {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t count = ::recv(channel, to, bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      REQUIRE(count > 0);  // 0 means that the other side has ended
      to += count;
      bytes -= static_cast<std::size_t>(count);
    }
  }
  template <typename Value>
  void tell(const Value& value) {
    write_all(&value, sizeof value);
  }
  template <typename Value>
  Value hear() {
    Value value;
    read_all(&value, sizeof value);
    return value;
  }
  void barrier() {
    char byte = 'b';
    write_all(&byte, 1);
    read_all(&byte, 1);
  }
  void start() {
    ++communicators;
    REQUIRE(net.init(&context) == Result::success);
  }
  void stop() {
    REQUIRE(net.finalize(context) == Result::success);
    if (net.has_finalize()) --communicators;
  }

  void* listen(std::uint8_t* handle, int device = 0) {
    std::memset(handle, 0x5A, weft::nccl::kHandleBytesMax);
    void* comm = nullptr;
    REQUIRE(net.listen(context, device, handle, &comm) == Result::success);
    REQUIRE(comm != nullptr);
    return comm;
  }
  // Calls connect once and accept once, except in a direction that is already connected.
  void step(void* listener, Handle* peer, Link* link, int connect_device = 0) {
    if (link->send == nullptr) {
      REQUIRE(net.connect(context, connect_device, peer->bytes, &link->send) == Result::success);
    }
    if (link->receive == nullptr) REQUIRE(net.accept(listener, &link->receive) == Result::success);
  }
  // Connects both directions through exchanged handles, polling as NCCL's service thread does.
  Link link_through(void* listener, Handle peer, int connect_device = 0) {
    Link made;
    const Deadline deadline;
    while (made.send == nullptr || made.receive == nullptr) {
      REQUIRE(!deadline.over());
      step(listener, &peer, &made, connect_device);
    }
    return made;
  }
  Link link(int listen_device = 0, int connect_device = 0) {
    Handle own;
    void* const listener = listen(own.bytes, listen_device);
    tell(own);
    const Link made = link_through(listener, hear<Handle>(), connect_device);
    REQUIRE(net.close_listen(listener) == Result::success);
    return made;
  }
  void unlink(const Link& link) {
    REQUIRE(net.close_send(link.send) == Result::success);
    REQUIRE(net.close_receive(link.receive) == Result::success);
  }
  void* send(void* comm, void* data, std::size_t bytes, void* mhandle) {
    const Deadline deadline;
    for (;;) {
      auto* request = reinterpret_cast<void*>(0xDEAD0);
      REQUIRE(net.isend(comm, data, bytes, mhandle, &request) == Result::success);
      if (request != nullptr) return request;
      REQUIRE(!deadline.over());
    }
  }
  void* receive(void* comm, void* data, std::size_t bytes, void* mhandle, std::uintptr_t hint = 0xDEAD0) {
    const Deadline deadline;
    for (;;) {
      auto* request = reinterpret_cast<void*>(hint);
      REQUIRE(net.irecv(comm, data, bytes, mhandle, &request) == Result::success);
      if (request != nullptr) return request;
      REQUIRE(!deadline.over());
    }
  }
  // Tests a request until it is done or fails; returns the result.
  Result outcome(void* request, int* sizes) {
    const Deadline deadline;
    for (;;) {
      int done = 77;
      const Result result = net.test(request, &done, sizes);
      REQUIRE(done == 0 || done == 1);
      if (result != Result::success || done == 1) return result;
      REQUIRE(!deadline.over());
      std::this_thread::yield();
    }
  }
  void finish(void* request, std::size_t bytes) {
    int size = -1;
    REQUIRE(outcome(request, &size) == Result::success);
    REQUIRE(size == static_cast<int>(bytes));
  }
};

// Sends one message of each size in each direction, with as many outstanding requests as NCCL has;
// every receive is larger than its message.
inline void exchange(Side& side, const Link& link, const std::vector<std::size_t>& sizes,
                     std::uintptr_t hint = 0xDEAD0) {
  constexpr std::size_t slack = 37;
  const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
  Buffer out(largest * sizes.size());
  Buffer in((largest + slack) * sizes.size());
  void* out_handle = nullptr;
  void* in_handle = nullptr;
  REQUIRE(side.net.reg(link.send, out.data(), largest * sizes.size(), &out_handle) == Result::success);
  REQUIRE(side.net.reg(link.receive, in.data(), (largest + slack) * sizes.size(), &in_handle) == Result::success);
  REQUIRE(out_handle != nullptr && in_handle != nullptr);
  std::vector<void*> sends;
  std::vector<void*> receives;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::uint8_t* const data = out.data() + largest * i;
    fill(data, sizes[i], i);
    receives.push_back(
        side.receive(link.receive, in.data() + (largest + slack) * i, sizes[i] + slack, in_handle, hint));
    sends.push_back(side.send(link.send, data, sizes[i], out_handle));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    side.finish(receives[i], sizes[i]);
    const std::uint8_t* const data = in.data() + (largest + slack) * i;
    REQUIRE(holds(data, sizes[i], i));
    REQUIRE(std::all_of(data + sizes[i], data + sizes[i] + slack, [](std::uint8_t byte) { return byte == 0; }));
    if (i % 2 == 0)
      side.finish(sends[i], sizes[i]);
    else
      REQUIRE(side.outcome(sends[i], nullptr) == Result::success);
  }
  REQUIRE(side.net.dereg(link.send, out_handle) == Result::success);
  REQUIRE(side.net.dereg(link.receive, in_handle) == Result::success);
}

}  // namespace host
