// A connection as NCCL sees it (a comm), with its memory registrations and requests.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "native/core/status.h"
#include "native/message/runtime.h"
#include "native/plugin/abi_common.h"
#include "native/plugin/handle_table.h"
#include "native/plugin/receive_groups.h"
#include "native/plugin/send_groups.h"

namespace weft::nccl {

struct Registration {
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;  // the runtime's registration number; 0: none
};

// How the receives of a connection match its sends: plain ones in order; grouped ones by tag, at the end that connects
// or the one that accepts.
enum class Matching { plain, grouped_sends, grouped_receives };

class Comm {
 public:
  // `context`: the communicator to which the comm belongs; null for interface versions without contexts.
  Comm(const void* context, std::shared_ptr<message::Runtime> runtime, std::shared_ptr<message::Connection> connection,
       Matching matching);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  message::Connection& connection() { return *connection_; }
  const void* context() const noexcept { return context_; }
  void set_handle(OpaqueHandle handle) noexcept { handle_ = handle; }
  Matching matching() const noexcept { return matching_; }
  SendGroups* send_groups() noexcept { return send_groups_.get(); }           // null unless grouped_sends
  ReceiveGroups* receive_groups() noexcept { return receive_groups_.get(); }  // null unless grouped_receives

  // Limit of requests in progress: twice as many as NCCL posts in one direction. A request's slot is reused once test()
  // has reported that the request is done; if no slot is free, the caller must try again.
  static constexpr unsigned kSlotsMax = 2 * kMaxRequests;
  static constexpr unsigned kNoSlot = kSlotsMax + 1;
  // Takes a slot for a request that uses the registration `mhandle` (null: none). Returns kNoSlot if all are in use.
  unsigned take_slot(const void* mhandle);
  void give_slot(unsigned slot);
  // null: the slot is not in use, or the request belongs to a group
  engine::Request*& request(unsigned slot) noexcept { return requests_[slot]; }

  // All requests posted after the connection has failed get this slot, so that test() reports the failure each time.
  static constexpr unsigned kFailedSlot = kSlotsMax;
  void fail_slot(Status status);
  Status failure() const noexcept { return failure_.load(std::memory_order_acquire); }  // ok: no failure

  // The opaque handle that NCCL holds for a slot's request.
  void* request_handle(unsigned slot) const noexcept {
    return OpaqueHandle{HandleKind::request, static_cast<std::uint8_t>(slot), handle_.generation, handle_.index}
        .value();
  }

  void* add_registration(void* data, std::size_t bytes);
  // The runtime's registration number, which is the lower half of the mhandle that NCCL passes with a buffer; 0: none.
  static std::uint32_t memory_of(const void* mhandle) noexcept {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(mhandle));
  }
  // Removes a registration and ends the requests that use it. Returns false if this comm has no such registration.
  bool remove_registration(void* mhandle);

  // Logs the connection's first failure, and returns `status`.
  Status note(Status status);

 private:
  // Whether a request in progress was posted with this registration, or without any.
  bool may_be_used(const void* mhandle);

  const void* const context_;
  const Matching matching_;
  OpaqueHandle handle_{};
  std::shared_ptr<message::Runtime> runtime_;  // outlives the connection, which uses it
  std::shared_ptr<message::Connection> connection_;
  std::unique_ptr<SendGroups> send_groups_;
  std::unique_ptr<ReceiveGroups> receive_groups_;
  std::mutex slots_mutex_;
  std::uint64_t free_slots_ = ~std::uint64_t{0};  // one bit per slot; set: the slot is free
  static_assert(kSlotsMax == 64 && SendGroups::kSlots == kSlotsMax && ReceiveGroups::kSlots == kSlotsMax);
  std::array<engine::Request*, kSlotsMax> requests_{};
  std::array<const void*, kSlotsMax> mhandles_{};  // the registration with which each slot's request was posted
  std::atomic<Status> failure_{Status::ok};
  std::mutex registrations_mutex_;
  // counts registrations of the whole process, so that no comm accepts another comm's mhandle
  static inline std::atomic<std::uint32_t> next_registration_{0};  // NOLINT(readability-identifier-naming)
  std::unordered_map<const void*, Registration> registrations_;
  std::atomic<bool> failure_logged_{false};
};

// Creates a comm, which the session keeps until NCCL closes it or finalizes its context. If there are too many comms,
// closes the connection and returns null.
void* make_comm(const void* context, std::shared_ptr<message::Runtime> runtime,
                std::shared_ptr<message::Connection> connection, Matching matching);

}  // namespace weft::nccl
