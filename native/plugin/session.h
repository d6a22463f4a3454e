// Starts and stops the process's only runtime, and owns the listeners, connection attempts and comms that NCCL may
// abandon.
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
#include "native/plugin/attempt.h"
#include "native/plugin/comm.h"
#include "native/plugin/handle_table.h"

namespace weft::nccl {

// A communicator of NCCL 2.28 and later; older versions have no contexts and pass null.
struct Context {
  std::uint64_t comm_id = 0;
  int traffic_class = kNoTrafficClass;
};

// A listener handed to NCCL, which may close it unused or never.
struct ListenComm {
  const void* context = nullptr;
  std::shared_ptr<message::Runtime> runtime;  // declared before the listener, so that the listener is destroyed first
  std::unique_ptr<message::Listener> listener;
  bool grouped = false;  // whether its connections have grouped receives
};

// The only instance is never destroyed: a destructor at exit would race with NCCL's threads that still call the plugin.
class Session {
 public:
  static Session& instance() noexcept;

  // For interface versions up to 10; called once. The runtime stops when the last comm is closed. A comm that is never
  // closed keeps it running until the process ends, as these versions do not tell when a communicator is destroyed.
  Status init(Logger logger);
  // NCCL's callback that ties messages to its profiler events; null for interface versions up to 9. It is the same for
  // all communicators.
  void set_profiler(ProfilerCallback callback) noexcept { profiler_.store(callback, std::memory_order_release); }
  ProfilerCallback profiler() const noexcept { return profiler_.load(std::memory_order_acquire); }
  // For interface versions from 11; called once per communicator. The runtime stops when the last communicator is
  // finalized. finalize() closes the listeners, connection attempts and comms that NCCL has left open in the context.
  Status init(Logger logger, std::uint64_t comm_id, int traffic_class, void** context);
  void finalize(const void* context);
  // Whether listen and connect may use the context. Sets `traffic_class` to the context's class. A null context is
  // valid and leaves the class unchanged.
  bool knows(const void* context, int* traffic_class) const noexcept;

  // The devices found by the most recent start. Device lists are never changed or freed, because NCCL keeps pointers to
  // the names.
  const std::vector<datapath::Device>& devices();
  // The device speed to report to NCCL, if the knob nccl_speed_mbps sets one; otherwise 0.
  std::int64_t nccl_speed_mbps();
  // How many buffers one irecv may have: the knob nccl_receives_max.
  int nccl_receives_max();
  // Returns the runtime, which is started again if it had stopped.
  Status runtime(std::shared_ptr<message::Runtime>* out);

  // After a caller has removed and destroyed a comm, a listener or an attempt, it must call settle().
  HandleTable<Comm>& comms() noexcept { return comms_; }
  HandleTable<ListenComm>& listeners() noexcept { return listeners_; }
  // Stops the runtime if no context, listener, attempt, comm or call needs it any more. If only attempts need it, which
  // NCCL may have abandoned, stops it when they have ended.
  void settle();

  std::uint64_t add_attempt(std::shared_ptr<Attempt> attempt);
  // Returns null if the id is unknown or belongs to another handle.
  std::shared_ptr<Attempt> find_attempt(std::uint64_t id, const control::Handle& handle);
  void remove_attempt(std::uint64_t id);

  // Queues a line for NCCL's log. A separate thread writes it, so that NCCL's threads do not wait. Lines before init
  // and after the last finalize are dropped.
  void log(engine::LogLevel level, const std::string& text);

 private:
  Status open(Logger logger);
  Status start();
  // Receives the log lines of the engines and the plugin, and passes them to NCCL's logger; runs on the log's own
  // thread.
  static void to_nccl(engine::LogLevel level, const char* text) noexcept;
  void forget_logger();
  std::vector<std::shared_ptr<Attempt>> attempts();
  // Stops the runtime if nothing needs it. Returns whether only attempts do; if not, a watcher that called must end.
  // The lock must not be held.
  bool release_runtime(bool by_watcher);
  void watch() noexcept;
  // Starts a thread that ends attempts and calls release_runtime() until something else needs the runtime.
  void watch_attempts();

  std::mutex mutex_;
  // Held while a runtime stops, because the next one may need its ports. Locked after mutex_, and for longer.
  std::mutex stop_mutex_;
  std::mutex log_mutex_;  // locked after any other mutex; held while NCCL's logger runs, so that forget_logger() waits
  Logger log_ = nullptr;
  std::atomic<ProfilerCallback> profiler_{nullptr};
  engine::Knobs knobs_;
  std::deque<std::vector<datapath::Device>> device_lists_;  // the last list is the valid one
  std::shared_ptr<message::Runtime> runtime_;
  HandleTable<Context> contexts_{HandleKind::context};
  HandleTable<Comm> comms_{HandleKind::comm};
  HandleTable<ListenComm> listeners_{HandleKind::listener};
  std::unordered_map<std::uint64_t, std::shared_ptr<Attempt>> attempts_;
  std::uint64_t next_attempt_ = 1;
  bool watching_attempts_ = false;
};

}  // namespace weft::nccl
