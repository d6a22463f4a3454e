// Definitions shared by all versions of NCCL's profiler interface: event types and states. Written for weft, not copied
// from NCCL's headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/plugin/abi_common.h"

namespace weft::nccl {

// Bits of an event's type, and of the mask by which a profiler chooses events.
inline constexpr std::uint64_t kEventGroup = 1 << 0;
inline constexpr std::uint64_t kEventCollective = 1 << 1;
inline constexpr std::uint64_t kEventPointToPoint = 1 << 2;
inline constexpr std::uint64_t kEventProxyOp = 1 << 3;
inline constexpr std::uint64_t kEventProxyStep = 1 << 4;
inline constexpr std::uint64_t kEventProxyControl = 1 << 5;
inline constexpr std::uint64_t kEventKernelChannel = 1 << 6;     // since interface version 3
inline constexpr std::uint64_t kEventNetPlugin = 1 << 7;         // since interface version 3
inline constexpr std::uint64_t kEventGroupApi = 1 << 8;          // since interface version 5
inline constexpr std::uint64_t kEventCollectiveApi = 1 << 9;     // since interface version 5
inline constexpr std::uint64_t kEventPointToPointApi = 1 << 10;  // since interface version 5
inline constexpr std::uint64_t kEventKernelLaunch = 1 << 11;     // since interface version 5
inline constexpr std::uint64_t kEventCopyCollective = 1 << 12;   // interface version 6: a collective by copy engines

// States of a proxy step, which are recorded when the step begins to wait for something.
inline constexpr int kStateSendGpuWait = 8;
inline constexpr int kStateSendWait = 9;
inline constexpr int kStateReceiveWait = 10;
inline constexpr int kStateReceiveFlushWait = 11;
inline constexpr int kStateReceiveGpuWait = 12;
inline constexpr int kStateSendPeerWait = 20;  // since interface version 4
// States of a proxy operation in interface versions 1 to 3, which count bytes and steps.
inline constexpr int kStateOpSendTransmitted = 2;
inline constexpr int kStateOpReceived = 5;
inline constexpr int kStateKernelChannelStop = 22;  // since interface version 4

// A message of a network plugin. NCCL passes the plugin's own structure in `data`; `id` has its type and version.
struct ProfiledNetEvent {
  std::int64_t id;
  void* data;
};

// Facts of a proxy operation, the same in every version; the pid is that of the process that enqueued the operation.
struct ProfiledProxyOp {
  std::int32_t pid;
  std::uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int sends;
};
static_assert(sizeof(ProfiledProxyOp) == 24 && offsetof(ProfiledProxyOp, peer) == 8);

struct ProfiledKernel {
  std::uint8_t channel;
  std::uint64_t timer_ns;  // since interface version 4: the GPU's global timer
};
static_assert(sizeof(ProfiledKernel) == 16);

}  // namespace weft::nccl
