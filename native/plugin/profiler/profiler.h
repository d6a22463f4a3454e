// The calls of NCCL's profiler interface, independent of its versions. What they report is written to the trace. The
// trace has one record for each operation and for each of its channels to a peer, which sums up the channel's steps. No
// call returns an error to NCCL: what cannot be recorded is dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "native/engine/trace/trace_writer.h"
#include "native/plugin/profiler/abi_common.h"
#include "native/plugin/profiler/event_pool.h"
#include "native/plugin/profiler/net_message.h"

namespace weft::nccl {

// The data of an event in progress.
struct ProfiledEvent {
  enum class Kind : std::uint8_t { channel, step, kernel };
  Kind kind = Kind::channel;
  bool sends = false;
  std::uint16_t channel = 0;
  std::uint32_t record = 0;     // for a channel: id of the channel's trace record
  std::uint32_t operation = 0;  // for a kernel: id of the operation's trace record
  OpaqueHandle parent{};        // for a step: handle of the channel's event
  // For a channel: number and handle of the step that was started last.
  int step = -1;
  OpaqueHandle step_event{};
  // For a step: what it waits for (0: nothing yet), and since when.
  int state = 0;
  std::int64_t since_ns = 0;
  // For a channel: sums over its steps, which several threads may end. For a kernel: the GPU's times.
  std::atomic<std::uint64_t> bytes{0}, gpu_wait_ns{0}, peer_wait_ns{0}, network_wait_ns{0};
  std::atomic<std::uint32_t> steps{0}, messages{0};
};

struct CommunicatorFacts {
  std::uint64_t comm_id = 0;
  const char* name = nullptr;
  int nodes = 0, ranks = 0, rank = -1;
};

// What NCCL reports of an operation; texts that are null are unknown.
struct OperationFacts {
  enum class Kind : std::uint16_t { collective, point_to_point, copy_engines };
  Kind kind = Kind::collective;
  // Interface versions 1 to 3 name the communicator with each operation, later ones in init.
  std::uint64_t comm_hash = 0;
  const char* comm_name = nullptr;
  int rank = -1;
  std::uint64_t sequence = 0, count = 0, tag = 0;
  const char *function = nullptr, *datatype = nullptr, *algorithm = nullptr, *protocol = nullptr;
  int root = -1;  // for point-to-point operations: the peer's rank
  std::uint16_t channels = 0;
  const void* call = nullptr;  // handle of the program's call of NCCL, from interface version 5 on
};

class Profiler {
 public:
  static Profiler& instance() noexcept;

  // Sets the context, and the mask of events that the trace needs: 0 if the knob `trace` is empty or no trace can be
  // written. The mask is written in one step, because NCCL has one mask for all communicators, and others may be
  // running.
  void init(void** context, int* mask, const CommunicatorFacts& facts, Logger log) noexcept;
  void finalize(void* context) noexcept;

  // The functions start_... with a parameter `event` set *event to the new event's handle; null: nothing is recorded.
  void start_operation(void* context, const OperationFacts& facts, void** event) noexcept;
  // A call of NCCL by the program. Operations that it causes start later, and name it as their parent.
  void start_call(bool is_captured, void** event) noexcept;
  void start_channel(void* context, const void* parent, const ProfiledProxyOp& facts, void** event) noexcept;
  // If the network could not accept a step's data, NCCL starts the step again; *event is then the same handle.
  void start_step(const void* parent, int number, void** event) noexcept;
  void start_kernel(const void* parent, std::uint16_t channel, std::uint64_t gpu_ns, void** event) noexcept;
  void start_net(const void* parent, const ProfiledNetEvent& event) noexcept;

  // A step begins to wait for the thing that `state` names. `bytes`: size of the step; 0: not known.
  void record_state(const void* event, int state, std::uint64_t bytes) noexcept;
  // Sets the bytes that a channel has transferred so far. Only interface versions 1 to 3 count bytes by channel.
  void record_transferred(const void* event, std::uint64_t bytes) noexcept;
  void record_kernel_stop(const void* event, std::uint64_t gpu_ns) noexcept;
  void stop(const void* event) noexcept;

 private:
  // A communicator: NCCL initialises the profiler once for each.
  struct Context {
    std::uint32_t record = 0;
    std::atomic<bool> named{false};  // false: NCCL has not named the communicator yet (interface versions 1 to 3)
  };
  Profiler() = default;
  engine::TraceWriter* begin_tracing(Logger log);
  bool wants_kernels() noexcept;
  void name(Context* context, const CommunicatorFacts& facts) noexcept;
  void add_wait(ProfiledEvent* step, std::int64_t now_ns) noexcept;

  std::mutex mutex_;
  bool tried_ = false;
  // The times of kernels are traced for one in this many operations; 0: for none.
  std::int64_t kernels_every_ = 0;
  std::atomic<std::int64_t> operations_{0};
  int pid_ = 0;  // id of this process, stored because getpid() is a system call
  // Kept until the process ends, because events come from other threads even after the last finalize.
  std::shared_ptr<engine::TraceWriter> owned_;
  std::atomic<engine::TraceWriter*> writer_{nullptr};  // null: nothing is recorded
  HandleTable<Context> contexts_{HandleKind::profiler};
  EventPool<ProfiledEvent> events_{HandleKind::profiled};
};

}  // namespace weft::nccl
