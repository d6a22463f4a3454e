// The requests of a connection as the engine sees them. Slots are allocated in blocks when messages first use them, so
// that a connection with little traffic needs little memory, and are reused until the connection ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "native/core/receive_queue.h"
#include "native/engine/request.h"

namespace weft::engine {

class RequestSlot final : public Request {
 public:
  bool usable() const noexcept { return !taken(); }
  void begin(const void* data, std::size_t bytes, Completion* completion) noexcept;
  // Completes the request; called on engine threads. The slot may be reused before this returns.
  void complete(Status status, std::size_t bytes) noexcept;
  bool overlaps(const void* data, std::size_t bytes) const noexcept;
  void wait(std::int64_t timeout_ns) noexcept;
  void release() noexcept { taken_.store(false, std::memory_order_release); }
  bool taken() const noexcept { return taken_.load(std::memory_order_acquire); }

  core::ReceiveTicket ticket;           // receives only: shared by the flows that receive the message
  std::atomic<std::uint32_t> parts{0};  // sends only: number of flows whose part is not acknowledged
  std::uint64_t message = 0;            // number of the message in its direction of the connection
  std::uint64_t posted_bytes = 0;       // size of a send, or capacity of a receive
  bool sends = false;                   // true for a send, false for a receive
  std::int64_t posted_ns = 0;           // time of the post; set only while a trace is written
  std::uint32_t channel = 0;            // id of the NCCL channel's trace record; 0: none

 private:
  std::atomic<std::int32_t> sleepers_{0};
  std::uintptr_t begin_ = 0;
  std::size_t length_ = 0;
  Completion* completion_ = nullptr;
  std::atomic<bool> taken_{false};
};

// The slots of one direction of a connection: message n uses slot n % kSlots.
class RequestSlots {
 public:
  static constexpr std::uint64_t kSlots = 128;

  // Returns the message's slot; null when out of memory. Only one thread at a time may call it.
  RequestSlot* obtain(std::uint64_t message) noexcept {
    auto& block = blocks_[message % kSlots / kBlock];
    if (block == nullptr) block.reset(new (std::nothrow) RequestSlot[kBlock]);
    return block == nullptr ? nullptr : &block[message % kBlock];
  }
  // The slot of a message for which obtain() has returned one. Any thread that knows of the message may call it.
  RequestSlot& of(std::uint64_t message) const noexcept { return blocks_[message % kSlots / kBlock][message % kBlock]; }
  // Calls what(slot) for every slot that was ever used. Must not run while another thread is in obtain().
  template <typename What>
  void each(const What& what) const noexcept {
    for (const auto& block : blocks_) {
      for (std::uint64_t i = 0; block != nullptr && i < kBlock; ++i) what(block[i]);
    }
  }

 private:
  static constexpr std::uint64_t kBlock = 8;
  std::array<std::unique_ptr<RequestSlot[]>, kSlots / kBlock> blocks_;
};

}  // namespace weft::engine
