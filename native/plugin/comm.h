// One connection as NCCL holds it: its registrations and its requests.
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

namespace weft::nccl {

struct Registration {
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;  // the runtime's registration; 0: none
};

class Comm {
 public:
  // `context`: of the communicator that it belongs to; null for interfaces without.
  Comm(const void* context, std::shared_ptr<engine::Runtime> runtime, std::shared_ptr<engine::Connection> connection);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  engine::Connection& connection() { return *connection_; }
  const void* context() const noexcept { return context_; }
  void set_handle(OpaqueHandle handle) noexcept { handle_ = handle; }

  // A request's place is reused as soon as test reported it done. Twice what NCCL keeps out in one direction; beyond it
  // a caller is told "not now".
  static constexpr unsigned kSlotsMax = 2 * kMaxRequests;
  static constexpr unsigned kNoSlot = kSlotsMax + 1;
  // For a request with this registration, or none; kNoSlot when as many are out as the comm allows.
  unsigned take_slot(const void* mhandle);
  void give_slot(unsigned slot);
  engine::Request*& request(unsigned slot) noexcept { return requests_[slot]; }  // null: not out

  // What every request is that comes after the connection's end: test() fails it as often as it is asked.
  static constexpr unsigned kFailedSlot = kSlotsMax;
  void fail_slot(Status status);
  Status failure() const noexcept { return failure_.load(std::memory_order_acquire); }  // ok: none has failed

  // What NCCL holds for a slot.
  void* request_handle(unsigned slot) const noexcept {
    return OpaqueHandle{HandleKind::request, static_cast<std::uint8_t>(slot), handle_.generation, handle_.index}
        .value();
  }

  void* add_registration(void* data, std::size_t bytes);
  // Of a handle that NCCL passes back with a buffer; null: none. The lower half is the runtime's number.
  static std::uint32_t memory_of(const void* mhandle) noexcept {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(mhandle));
  }
  // Ends the requests that use it; false when the handle is none of this comm's.
  bool remove_registration(void* mhandle);

  // Logs the first failure of the connection; returns the status.
  Status note(Status status);

 private:
  // Whether a request that is out was posted with the registration, or with none.
  bool may_be_used(const void* mhandle);

  const void* const context_;
  OpaqueHandle handle_{};
  std::shared_ptr<engine::Runtime> runtime_;  // goes after the connection that lives in it
  std::shared_ptr<engine::Connection> connection_;
  std::mutex slots_mutex_;
  std::uint64_t free_slots_ = ~std::uint64_t{0};  // a bit each
  static_assert(kSlotsMax == 64);
  std::array<engine::Request*, kSlotsMax> requests_{};
  std::array<const void*, kSlotsMax> mhandles_{};  // with which each was posted
  std::atomic<Status> failure_{Status::ok};
  std::mutex registrations_mutex_;
  static inline std::atomic<std::uint32_t> next_registration_{0};  // of the process: no comm takes another's handle
  std::unordered_map<const void*, Registration> registrations_;
  std::atomic<bool> failure_logged_{false};
};

// The session's until NCCL closes it, or finalizes its context. Null, and the connection is closed: too many are open.
void* make_comm(const void* context, std::shared_ptr<engine::Runtime> runtime,
                std::shared_ptr<engine::Connection> connection);

}  // namespace weft::nccl
