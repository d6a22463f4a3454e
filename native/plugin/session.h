// Starts and stops the process's one runtime, and keeps what NCCL may abandon half-way.
// Listeners and attempts belong to it until they become comms or are given up.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/core/status.h"
#include "native/engine/log.h"
#include "native/message/runtime.h"
#include "native/plugin/abi_common.h"
#include "native/plugin/comm.h"
#include "native/plugin/handle_table.h"

namespace weft::nccl {

// One communicator of NCCL 2.28 and later; older ones have none and pass null.
struct Context {
  std::uint64_t comm_id = 0;
  int traffic_class = kNoTrafficClass;
};

// A listener handed to NCCL; it may be closed unused, or never.
struct ListenComm {
  const void* context = nullptr;
  std::shared_ptr<engine::Runtime> runtime;  // declared before what lives in it, so that it goes last
  std::unique_ptr<engine::Listener> listener;
};

// A connect that NCCL calls again until it is through, or never again.
struct Attempt {
  const void* context = nullptr;
  engine::Handle handle;
  std::shared_ptr<engine::Runtime> runtime;
  std::unique_ptr<engine::Dial> dial;
};

// Never destroyed: exit handlers would race with threads of NCCL that still call in.
class Session {
 public:
  static Session& instance() noexcept;

  // Interfaces up to v10: called once, never undone; the runtime stops when the last comm is closed. Comms that are
  // never closed keep it, for none of these versions tells when a communicator is gone: one for the whole process.
  Status init(Logger logger);
  // Interfaces from v11: once per communicator; the runtime stops with the last of them. Finalize ends what NCCL has
  // left open of the context: listeners, connects and comms.
  Status init(Logger logger, std::uint64_t comm_id, int traffic_class, void** context);
  void finalize(const void* context);
  // Whether listen and connect may be called with it, and its traffic class; null is no context and may.
  bool knows(const void* context, int* traffic_class) const noexcept;

  // The devices as the last start found them. A list is never changed or freed, so that names may be kept.
  const std::vector<engine::Device>& devices();
  // What the knob asks NCCL to be told of every device's speed, or 0.
  std::int64_t nccl_speed_mbps();
  // Starts the runtime again when it had stopped.
  Status runtime(std::shared_ptr<engine::Runtime>* out);

  // Who removes one of these calls settle() once it is destroyed.
  HandleTable<Comm>& comms() noexcept { return comms_; }
  HandleTable<ListenComm>& listeners() noexcept { return listeners_; }
  // Stops the runtime when nothing needs it any more.
  void settle();

  std::uint64_t add_attempt(std::shared_ptr<Attempt> attempt);
  // Null when the number is unknown or belongs to another handle.
  std::shared_ptr<Attempt> find_attempt(std::uint64_t id, const engine::Handle& handle);
  void remove_attempt(std::uint64_t id);

  // One line in NCCL's log, soon: no thread of NCCL's waits for it to be written. Silent before init and after the
  // last finalize.
  void log(engine::LogLevel level, const std::string& text);

 private:
  Status open(Logger logger);
  Status start();
  // Where the engine's lines and ours go, on the log's own thread.
  static void to_nccl(engine::LogLevel level, const char* text) noexcept;
  void forget_logger();

  std::mutex mutex_;
  std::mutex log_mutex_;  // taken last; held while NCCL's function runs, so that none runs once it is forgotten
  Logger log_ = nullptr;
  engine::Knobs knobs_;
  std::deque<std::vector<engine::Device>> device_lists_;  // the last is in force
  std::shared_ptr<engine::Runtime> runtime_;
  HandleTable<Context> contexts_{HandleKind::context};
  HandleTable<Comm> comms_{HandleKind::comm};
  HandleTable<ListenComm> listeners_{HandleKind::listener};
  std::unordered_map<std::uint64_t, std::shared_ptr<Attempt>> attempts_;
  std::uint64_t next_attempt_ = 1;
};

}  // namespace weft::nccl
