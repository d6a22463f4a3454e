// Definitions shared by all versions of NCCL's network plugin interface: result codes, limits, callbacks, device
// handle. They are written for weft, not copied from NCCL's headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nccl {

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  // This plugin never returns in_progress, because NCCL would treat it as success.
  in_progress = 7,
};
static_assert(sizeof(Result) == 4);

inline constexpr std::size_t kHandleBytesMax = 128;
inline constexpr int kPointerHost = 1;
inline constexpr int kPointerCuda = 2;
inline constexpr int kPointerDmaBuf = 4;
inline constexpr int kDeviceTypeHost = 0;
inline constexpr int kMaxRequests = 32;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;
// irecv's *request may have this value on entry. It means that the caller need not learn when the message has arrived.
inline constexpr std::uintptr_t kOptionalCompletion = 0x1;

inline constexpr int kLogWarn = 2;
inline constexpr int kLogInfo = 3;
inline constexpr int kLogTrace = 5;
inline constexpr unsigned long kLogInit = 0x1;
inline constexpr unsigned long kLogNet = 0x10;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, std::int64_t plugin_id, void* data);

// Plugins of host type do not use device handles, and set every out-parameter of this type to null.
struct DeviceHandle {
  int net_device_type;
  int net_device_version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32);
static_assert(offsetof(DeviceHandle, handle) == 8);
static_assert(offsetof(DeviceHandle, size) == 16);
static_assert(offsetof(DeviceHandle, needs_proxy_progress) == 24);

inline constexpr int kNoTrafficClass = -1;
struct CommConfig {
  int traffic_class;
};
static_assert(sizeof(CommConfig) == 4);

template <int devices_max>
struct VirtualProperties {
  int ndevs;
  int devs[devices_max];
};

}  // namespace weft::nccl
