// The function table of libcuda, which is loaded at run time; without the library, only device memory is unavailable.
// CUDA's headers are not needed, because its types are declared here to match the ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::gpu {

using Result = int;             // CUresult
using DeviceId = int;           // CUdevice
using Context = void*;          // CUcontext
using Stream = void*;           // CUstream
using Event = void*;            // CUevent
using Module = void*;           // CUmodule
using Function = void*;         // CUfunction
using Address = std::uint64_t;  // CUdeviceptr
struct IpcHandle {              // CUipcMemHandle
  std::uint8_t bytes[64] = {};
};

inline constexpr Result kSuccess = 0;          // CUDA_SUCCESS
inline constexpr Result kInvalidValue = 1;     // CUDA_ERROR_INVALID_VALUE
inline constexpr Result kOutOfMemory = 2;      // CUDA_ERROR_OUT_OF_MEMORY
inline constexpr Result kLaunchFailed = 719;   // CUDA_ERROR_LAUNCH_FAILED
inline constexpr Result kNoDevice = 100;       // CUDA_ERROR_NO_DEVICE
inline constexpr Result kNotReady = 600;       // CUDA_ERROR_NOT_READY: not an error, ask again
inline constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream
inline constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kWaitAtLeast = 0;    // CU_STREAM_WAIT_VALUE_GEQ
inline constexpr unsigned kHostAllocPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts

// Each row: our name for the function, the symbol of the version with these types, and the parameters.
// clang-format off
#define WEFT_CUDA_FUNCTIONS(X)                                                                                        \
  X(init, "cuInit", (unsigned))                                                                                       \
  X(device_count, "cuDeviceGetCount", (int*))                                                                         \
  X(device_get, "cuDeviceGet", (DeviceId*, int))                                                                      \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (Context*, DeviceId))                                                 \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (DeviceId))                                                      \
  X(context_push, "cuCtxPushCurrent_v2", (Context))                                                                   \
  X(context_pop, "cuCtxPopCurrent_v2", (Context*))                                                                    \
  X(pointer_attributes, "cuPointerGetAttributes", (unsigned, const int*, void**, Address))                            \
  X(host_alloc, "cuMemHostAlloc", (void**, std::size_t, unsigned))                                                    \
  X(host_free, "cuMemFreeHost", (void*))                                                                              \
  X(alloc, "cuMemAlloc_v2", (Address*, std::size_t))                                                                  \
  X(free, "cuMemFree_v2", (Address))                                                                                  \
  X(ipc_name, "cuIpcGetMemHandle", (IpcHandle*, Address))                                                             \
  X(ipc_open, "cuIpcOpenMemHandle_v2", (Address*, IpcHandle, unsigned))                                               \
  X(ipc_close, "cuIpcCloseMemHandle", (Address))                                                                      \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int*, DeviceId, DeviceId))                                             \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (Address, const void*, std::size_t, Stream))                              \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, Address, std::size_t, Stream))                                      \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", (Address, Address, std::size_t, Stream))                                  \
  X(address_range_handle, "cuMemGetHandleForAddressRange",                                                            \
    (void*, Address, std::size_t, int, unsigned long long))                                                           \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                                        \
  X(stream_capturing, "cuStreamIsCapturing", (Stream, int*))                                                          \
  X(priorities, "cuCtxGetStreamPriorityRange", (int*, int*))                                                          \
  X(stream_create_with, "cuStreamCreateWithPriority", (Stream*, unsigned, int))                                       \
  X(stream_create, "cuStreamCreate", (Stream*, unsigned))                                                             \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream))                                                                   \
  X(stream_synchronize, "cuStreamSynchronize", (Stream))                                                              \
  X(stream_query, "cuStreamQuery", (Stream))                                                                          \
  X(stream_wait_event, "cuStreamWaitEvent", (Stream, Event, unsigned))                                                \
  X(stream_wait_value, "cuStreamWaitValue32_v2", (Stream, Address, std::uint32_t, unsigned))                          \
  X(stream_context, "cuStreamGetCtx", (Stream, Context*))                                                             \
  X(event_create, "cuEventCreate", (Event*, unsigned))                                                                \
  X(event_destroy, "cuEventDestroy_v2", (Event))                                                                      \
  X(event_record, "cuEventRecord", (Event, Stream))                                                                   \
  X(event_query, "cuEventQuery", (Event))                                                                             \
  X(module_load_data, "cuModuleLoadData", (Module*, const void*))                                                     \
  X(module_unload, "cuModuleUnload", (Module))                                                                        \
  X(module_function, "cuModuleGetFunction", (Function*, Module, const char*))                                         \
  /* grid x, y, z; block x, y, z; bytes of shared memory; stream; pointers to the parameters; more options */         \
  X(launch_kernel, "cuLaunchKernel",                                                                                  \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))         \
  X(error_name, "cuGetErrorName", (Result, const char**))                                                             \
  X(error_string, "cuGetErrorString", (Result, const char**))
// clang-format on

struct Driver {
#define WEFT_CUDA_POINTER(name, symbol, parameters) Result(*name) parameters = nullptr;
  WEFT_CUDA_FUNCTIONS(WEFT_CUDA_POINTER)
#undef WEFT_CUDA_POINTER
  // Formats an error: "cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered".
  std::string say(const char* symbol, Result result) const;
};

// Loads the library and calls cuInit, once per path. On failure returns null, and `error` says what is missing and what
// to do. The library is never unloaded, because it starts threads. `path`: "libcuda.so.1", except in tests.
const Driver* load_driver(const char* path, std::string* error);

// Makes a context current in this thread during its lifetime. It also relaxes the thread's stream capture mode, so that
// driver calls neither invalidate another thread's graph capture nor are refused because of it.
class Current {
 public:
  Current(const Driver& driver, Context context) : driver_(driver), result_(driver.context_push(context)) {
    if (result_ == kSuccess) swapped_ = driver_.capture_mode(&mode_) == kSuccess;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    Context popped = nullptr;
    if (swapped_) static_cast<void>(driver_.capture_mode(&mode_));
    if (result_ == kSuccess) static_cast<void>(driver_.context_pop(&popped));  // the next call reports an error
  }
  Result result() const noexcept { return result_; }

 private:
  const Driver& driver_;
  Result result_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; later the thread's previous mode
  bool swapped_ = false;
};

}  // namespace weft::gpu
