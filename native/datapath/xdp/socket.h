// An AF_XDP socket: its rings for one queue of an interface.
#pragma once

#include <cstdint>
#include <string>

#include "native/datapath/xdp/ring.h"
#include "native/datapath/xdp/umem.h"

namespace weft::datapath::xdp {

inline constexpr std::uint32_t kRingEntries = 2048;

struct SocketPlan {
  unsigned interface_index = 0;
  std::uint32_t queue = 0;
  std::uint32_t rx_chunks = 0;  // chunks that the kernel has for received packets; at most kRingEntries
  bool segments = false;        // packets may be longer than a chunk
  int shared_with = -1;         // the first socket of the memory; -1: this is the first
};

class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // On failure returns false, and `error` says what the kernel refused. If the queue is taken, waits up to half a
  // second for a process that has just ended.
  bool open(const SocketPlan& plan, Umem* umem, std::string* error);
  int descriptor() const noexcept { return descriptor_; }
  unsigned interface_index() const noexcept { return plan_.interface_index; }
  std::uint32_t queue() const noexcept { return plan_.queue; }
  bool zero_copy() const noexcept { return zero_copy_; }

  // Takes back the chunks of packets that have left.
  void reap() noexcept;
  // Makes the kernel send what is queued, by one call for as many packets as it takes at once. Returns the number of
  // calls.
  int kick() noexcept;
  bool has_queued() noexcept { return tx.queued() != 0; }
  // Gives a received chunk back to the kernel. refill() makes them visible.
  void give_back(std::uint64_t address) noexcept { fill_.next() = address & ~std::uint64_t{kChunkBytes - 1}; }
  void refill() noexcept;
  // Wakes the driver if it waits for chunks.
  void wake() const noexcept;
  // Packets that the kernel has dropped since the last call, because a ring was full or empty.
  std::int64_t take_drops() noexcept;

  Ring<Descriptor> rx, tx;

 private:
  bool map_rings(std::string* error);
  bool bind(std::string* error);

  SocketPlan plan_;
  Umem* umem_ = nullptr;
  int descriptor_ = -1;
  bool zero_copy_ = false;
  std::uint64_t drops_seen_ = 0;
  Ring<std::uint64_t> fill_, completion_;
};

}  // namespace weft::datapath::xdp
