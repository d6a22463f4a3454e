// The requests of a connection as the engine sees them. Slots are allocated when messages first need them, so that a
// connection with little traffic needs little memory, and are reused until the connection ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "native/core/receive_queue.h"
#include "native/engine/request.h"

namespace weft::engine {

// A receive's ticket is shared by the flows that receive the message.
class RequestSlot final : public Request, private core::ReceiveTicket {
 public:
  void begin(const void* data, std::size_t bytes, Completion* completion) noexcept;
  // Completes the request; called on engine threads. The slot may be reused before this returns.
  void complete(Status status, std::size_t bytes) noexcept;
  bool overlaps(const void* data, std::size_t bytes) const noexcept;
  void wait(std::int64_t timeout_ns) noexcept;
  void release() noexcept { taken_.store(false, std::memory_order_release); }
  bool taken() const noexcept { return taken_.load(std::memory_order_acquire); }
  core::ReceiveTicket& ticket() noexcept { return *this; }
  const core::ReceiveTicket& ticket() const noexcept { return *this; }
  // The slot with this ticket.
  static RequestSlot& with(core::ReceiveTicket* ticket) noexcept { return *static_cast<RequestSlot*>(ticket); }

  std::atomic<std::uint32_t> parts{0};  // sends only: number of flows whose part is not acknowledged
  std::uint32_t channel = 0;            // id of the NCCL channel's trace record; 0: none
  std::uint64_t message = 0;            // number of the message in its direction of the connection
  std::uint64_t posted_bytes = 0;       // size of a send, or capacity of a receive
  std::int64_t posted_ns = 0;           // time of the post; set only while a trace is written
  bool sends = false;                   // true for a send, false for a receive

 private:
  friend class RequestSlots;
  std::atomic<bool> taken_{false};
  std::atomic<std::int32_t> sleepers_{0};
  std::uintptr_t begin_ = 0;
  std::size_t length_ = 0;
  Completion* completion_ = nullptr;
  RequestSlot* next_ = nullptr;  // see RequestSlots
};

// The slots of one direction of a connection. A message gets a slot only if the message kSlots before it has released
// its own, so that this message, and all before it, are complete.
class RequestSlots {
 public:
  static constexpr std::uint64_t kSlots = 128;

  RequestSlots() = default;
  RequestSlots(const RequestSlots&) = delete;
  RequestSlots& operator=(const RequestSlots&) = delete;
  ~RequestSlots() {
    for (RequestSlot* chain : {oldest_, free_}) {
      while (chain != nullptr) delete std::exchange(chain, chain->next_);
    }
  }

  // Finds a free slot for the next message, which take() then gives to the message. would_block: too many messages are
  // outstanding. Only one thread at a time may call these functions.
  Status obtain(std::uint64_t message, RequestSlot** out) noexcept {
    while (oldest_ != nullptr && !oldest_->taken()) {
      RequestSlot* const over = std::exchange(oldest_, oldest_->next_);
      over->next_ = std::exchange(free_, over);
    }
    if (oldest_ == nullptr) newest_ = nullptr;
    if (oldest_ != nullptr && oldest_->message + kSlots <= message) return Status::would_block;
    if (free_ == nullptr) free_ = new (std::nothrow) RequestSlot;
    *out = free_;
    return free_ == nullptr ? Status::out_of_memory : Status::ok;
  }
  void take(std::uint64_t message) noexcept {
    RequestSlot* const slot = std::exchange(free_, free_->next_);
    slot->message = message;
    slot->next_ = nullptr;
    follows_taken_ = newest_ != nullptr && newest_->taken();
    (newest_ == nullptr ? oldest_ : newest_->next_) = slot;
    newest_ = slot;
  }
  // Whether the message before the last one was still outstanding when that one was posted.
  bool follows_taken() const noexcept { return follows_taken_; }
  // Calls what(slot) for every message that may be outstanding. Must not run while another thread is in obtain().
  template <typename What>
  void each(const What& what) const noexcept {
    for (RequestSlot* slot = oldest_; slot != nullptr; slot = slot->next_) what(*slot);
  }

 private:
  RequestSlot* oldest_ = nullptr;  // the messages that may be outstanding, in order
  RequestSlot* newest_ = nullptr;
  RequestSlot* free_ = nullptr;
  bool follows_taken_ = false;
};

}  // namespace weft::engine
