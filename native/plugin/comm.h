// One connection as NCCL holds it: its registrations and its requests.
// Decides nothing about interface versions and knows no listener.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "native/core/status.h"
#include "native/engine/runtime.h"

namespace weft::nccl {

class Comm;

// What isend and irecv hand to NCCL; reused as soon as test reported it done.
struct Slot {
  Comm* comm = nullptr;
  engine::Request* request = nullptr;
  Slot* next_free = nullptr;
  Status failure = Status::ok;  // of a request that could not be posted any more; it has no `request`
};

struct Registration {
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;  // the runtime's registration; 0: none
};

class Comm {
 public:
  Comm(std::shared_ptr<engine::Runtime> runtime, std::shared_ptr<engine::Connection> connection);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  engine::Connection& connection() { return *connection_; }

  // Null when as many are out as the comm allows.
  Slot* take_slot();
  void give_slot(Slot* slot);

  // What every request is that comes after the connection's end: test() fails it as often as it is asked.
  Slot* failed_slot(Status status);

  void* add_registration(void* data, std::size_t bytes);
  // Of a handle that NCCL passes back with a buffer; null: none.
  static std::uint32_t memory_of(const void* mhandle) noexcept {
    return mhandle == nullptr ? 0 : static_cast<const Registration*>(mhandle)->memory;
  }
  // Ends every use of the memory; false when the handle is none of this comm's.
  bool remove_registration(void* mhandle);

  // Logs the first failure of the connection; returns the status.
  Status note(Status status);

 private:
  std::shared_ptr<engine::Runtime> runtime_;  // goes after the connection that lives in it
  std::shared_ptr<engine::Connection> connection_;
  std::mutex slots_mutex_;
  std::deque<Slot> slots_;  // grows with use, never moves
  Slot* free_slots_ = nullptr;
  Slot failed_;  // written once, before it is handed out
  std::mutex registrations_mutex_;
  std::unordered_set<Registration*> registrations_;
  std::atomic<bool> failure_logged_{false};
};

// Counted in the session and owned by NCCL until close.
void* make_comm(std::shared_ptr<engine::Runtime> runtime, std::shared_ptr<engine::Connection> connection);

}  // namespace weft::nccl
