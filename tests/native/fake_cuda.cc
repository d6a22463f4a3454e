// A libcuda in which host memory is the device: a copy runs when somebody asks after an event, now or a few questions
// later, in the order of its stream, and so does a kernel. Never faster than the real one promises: what is read too
// early is wrong.
#include "tests/native/fake_cuda.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/host_kernels.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600;

struct FakeEvent {
  long recorded = 0, done = 0;  // counts: an event may be recorded again
  struct FakeStream* stream = nullptr;
};
struct FakeStream {
  std::deque<std::function<bool()>> work;  // false: not yet
};

std::mutex mutex;
std::string failing;
int fails_in = 0, fails_with = 0, live = 0, copies_waiting = 0;
bool fails_on = false;  // and goes on failing
std::uint32_t chance = 12345;
thread_local std::vector<void*> contexts;
int context_of_device, module_of_image;  // their addresses are the context and each module

std::set<FakeStream*> streams;
bool gone = false;

// The context is gone: what was handed over does not run any more.
void forget_work() {
  gone = true;
  for (FakeStream* stream : streams) stream->work.clear();
  copies_waiting = 0;
}

// Under the mutex. True: this call is the one that fails.
bool fails(const char* symbol, int* result) {
  if (failing != symbol || fails_in == 0 || --fails_in != 0) return false;
  if (fails_on) fails_in = 1;
  if (fails_on) forget_work();
  *result = fails_with;
  return true;
}

bool coin() {
  chance = chance * 1664525u + 1013904223u;
  return (chance >> 20 & 1u) != 0;
}

void advance(FakeStream* stream, bool all) {
  while (!stream->work.empty() && (all || coin())) {
    if (!stream->work.front()()) return;
    stream->work.pop_front();
  }
}

// Under the mutex.
int hand_over(FakeStream* stream, std::function<void()> work) {
  if (gone) return fails_with;
  if (contexts.empty()) return kInvalidContext;
  if (stream == nullptr) return kInvalidHandle;
  ++copies_waiting;
  stream->work.push_back([work = std::move(work)] {
    work();
    --copies_waiting;
    return true;
  });
  return kSuccess;
}

int copy(const char* symbol, void* to, const void* from, std::size_t bytes, void* stream) {
  const std::lock_guard lock(mutex);
  int result = kSuccess;
  if (fails(symbol, &result)) return result;
  if (to == nullptr || from == nullptr) return kInvalidHandle;
  return hand_over(static_cast<FakeStream*>(stream), [=] { std::memcpy(to, from, bytes); });
}

}  // namespace

#define BEGIN(symbol)                \
  const std::lock_guard lock(mutex); \
  int result = kSuccess;             \
  if (fails(symbol, &result)) return result

FAKE void fake_cuda_fail(const char* symbol, int nth, int result, int stays) {
  const std::lock_guard lock(mutex);
  failing = symbol == nullptr ? "" : symbol;
  fails_in = symbol == nullptr ? 0 : nth;
  fails_with = result;
  fails_on = stays != 0;
  gone = false;
}
FAKE int fake_cuda_live() {
  const std::lock_guard lock(mutex);
  return live;
}
FAKE int fake_cuda_copies_waiting() {
  const std::lock_guard lock(mutex);
  return copies_waiting;
}

FAKE int cuInit(unsigned) {
  BEGIN("cuInit");
  return result;
}
FAKE int cuDriverGetVersion(int* version) {
  BEGIN("cuDriverGetVersion");
  *version = 13000;
  return result;
}
FAKE int cuDeviceGetCount(int* count) {
  BEGIN("cuDeviceGetCount");
  *count = 2;
  return result;
}
FAKE int cuDeviceGet(int* device, int ordinal) {
  BEGIN("cuDeviceGet");
  if (ordinal < 0 || ordinal > 1) return 101;  // CUDA_ERROR_INVALID_DEVICE
  *device = ordinal;
  return result;
}
FAKE int cuDeviceGetName(char* name, int bytes, int) {
  BEGIN("cuDeviceGetName");
  std::snprintf(name, static_cast<std::size_t>(bytes), "none: the host plays it");
  return result;
}
FAKE int cuDevicePrimaryCtxRetain(void** context, int) {
  BEGIN("cuDevicePrimaryCtxRetain");
  ++live;
  *context = &context_of_device;
  return result;
}
FAKE int cuDevicePrimaryCtxRelease_v2(int) {
  BEGIN("cuDevicePrimaryCtxRelease_v2");
  --live;
  return result;
}
FAKE int cuCtxPushCurrent_v2(void* context) {
  BEGIN("cuCtxPushCurrent_v2");
  if (context != &context_of_device) return kInvalidContext;
  contexts.push_back(context);
  return result;
}
FAKE int cuCtxPopCurrent_v2(void** context) {
  BEGIN("cuCtxPopCurrent_v2");
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return result;
}
FAKE int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  BEGIN("cuMemHostAlloc");
  if (contexts.empty()) return kInvalidContext;
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  ++live;
  return result;
}
FAKE int cuMemFreeHost(void* memory) {
  BEGIN("cuMemFreeHost");
  std::free(memory);
  --live;
  return result;
}
FAKE int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", reinterpret_cast<void*>(to), from, bytes, stream);
}
FAKE int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", to, reinterpret_cast<void*>(from), bytes, stream);
}
FAKE int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync_v2", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, stream);
}
FAKE int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  BEGIN("cuMemAlloc_v2");
  if (contexts.empty()) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  *address = reinterpret_cast<std::uint64_t>(memory);
  ++live;
  return result;
}
FAKE int cuMemFree_v2(std::uint64_t address) {
  BEGIN("cuMemFree_v2");
  std::free(reinterpret_cast<void*>(address));
  --live;
  return result;
}
FAKE int cuModuleLoadData(void** module, const void* image) {
  BEGIN("cuModuleLoadData");
  if (contexts.empty()) return kInvalidContext;
  if (image == nullptr) return kInvalidValue;
  *module = &module_of_image;
  ++live;
  return result;
}
FAKE int cuModuleUnload(void* module) {
  BEGIN("cuModuleUnload");
  if (module != &module_of_image) return kInvalidHandle;
  --live;
  return result;
}
// Whatever the image holds: kernels are those of the host, by the same names.
FAKE int cuModuleGetFunction(void** function, void* module, const char* name) {
  BEGIN("cuModuleGetFunction");
  const weft::test::HostKernel* const found = weft::test::find_host_kernel(name);
  if (found == nullptr || module != &module_of_image) return 500;  // CUDA_ERROR_NOT_FOUND
  *function = const_cast<weft::test::HostKernel*>(found);
  return result;
}
FAKE int cuLaunchKernel(void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared_bytes, void* stream, void** parameters, void** more) {
  BEGIN("cuLaunchKernel");
  if (blocks == 0 || y * z * threads_y * threads_z != 1 || threads != weft::gpu::kBlockThreads || shared_bytes != 0 ||
      more != nullptr)
    return kInvalidValue;
  const auto* const kernel = static_cast<const weft::test::HostKernel*>(function);
  return hand_over(static_cast<FakeStream*>(stream), kernel->prepare(blocks, parameters));
}
FAKE int cuStreamCreate(void** stream, unsigned) {
  BEGIN("cuStreamCreate");
  if (contexts.empty()) return kInvalidContext;
  auto* const made = new FakeStream();
  streams.insert(made);
  *stream = made;
  ++live;
  return result;
}
FAKE int cuStreamDestroy_v2(void* stream) {
  BEGIN("cuStreamDestroy_v2");
  advance(static_cast<FakeStream*>(stream), true);
  streams.erase(static_cast<FakeStream*>(stream));
  delete static_cast<FakeStream*>(stream);
  --live;
  return result;
}
FAKE int cuStreamSynchronize(void* stream) {
  BEGIN("cuStreamSynchronize");
  advance(static_cast<FakeStream*>(stream), true);
  return result;
}
FAKE int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  BEGIN("cuStreamWaitEvent");
  auto* const wanted = static_cast<FakeEvent*>(event);
  const long until = wanted->recorded;
  static_cast<FakeStream*>(stream)->work.push_back([=] { return wanted->done >= until; });
  return result;
}
FAKE int cuEventCreate(void** event, unsigned) {
  BEGIN("cuEventCreate");
  *event = new FakeEvent();
  ++live;
  return result;
}
FAKE int cuEventDestroy_v2(void* event) {
  BEGIN("cuEventDestroy_v2");
  delete static_cast<FakeEvent*>(event);
  --live;
  return result;
}
FAKE int cuEventRecord(void* event, void* stream) {
  BEGIN("cuEventRecord");
  if (gone) return fails_with;
  auto* const recorded = static_cast<FakeEvent*>(event);
  const long number = ++recorded->recorded;
  recorded->stream = static_cast<FakeStream*>(stream);
  recorded->stream->work.push_back([=] {
    recorded->done = number;
    return true;
  });
  return result;
}
FAKE int cuEventQuery(void* event) {
  BEGIN("cuEventQuery");
  if (gone) return fails_with;
  auto* const asked = static_cast<FakeEvent*>(event);
  if (asked->stream != nullptr && asked->done < asked->recorded) advance(asked->stream, false);
  return asked->done >= asked->recorded ? result : kNotReady;
}
// Times mean nothing here.
FAKE int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  BEGIN("cuEventElapsedTime");
  const auto *a = static_cast<FakeEvent*>(from), *b = static_cast<FakeEvent*>(to);
  if (a->done < a->recorded || b->done < b->recorded) return kNotReady;
  *milliseconds = 1;
  return result;
}
FAKE int cuGetErrorName(int error, const char** name) {
  *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
FAKE int cuGetErrorString(int error, const char** text) {
  *text = error == 700 ? "an illegal memory access was encountered" : "as the test asked for";
  return error < 0 ? kInvalidValue : kSuccess;
}
