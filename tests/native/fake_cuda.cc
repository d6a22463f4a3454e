// A fake libcuda that uses host memory as device memory. Work of a stream runs in order, at some later query. It runs
// no earlier than the real driver guarantees, so that reading too early gives wrong bytes.
#include "tests/native/fake_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/gpu/driver.h"
#include "tests/native/host_kernels.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600;

struct Recorded {
  bool done = false;
  struct FakeStream* stream = nullptr;
};
struct FakeEvent {
  std::shared_ptr<Recorded> last;  // shared, as streams may still wait for an event that is recorded again or destroyed
};
struct FakeStream {
  void* context = nullptr;
  std::deque<std::function<bool()>> work;  // a function returns false until its work is done
};
struct FakeMemory {
  std::size_t bytes = 0;
  int device = 0;
  bool managed = false;
  std::uint8_t* reached = nullptr;  // address at which this file accesses the memory; null: its own address
  std::uint64_t id = 0;             // of the allocation
};

std::mutex mutex;
std::uint64_t allocations = 0;
bool shares = true;
std::map<std::uint64_t, int> mapped;  // by address: how many times it was opened
std::string failing;
int fails_in = 0, fails_with = 0, live = 0;
bool fails_on = false;  // whether all calls after the first failure fail, too
std::uint32_t chance = 12345;
thread_local std::vector<void*> contexts;
int context_of_device[2], module_of_image;  // their addresses are used as handles of contexts and modules
FakeStream default_of_device[2];

std::set<FakeStream*> streams{&default_of_device[0], &default_of_device[1]};
std::map<std::uintptr_t, FakeMemory> memories;
std::multiset<const unsigned*> awaited;  // memory words that streams wait for
int held_up = 0;
bool gone = false;
void* captured = nullptr;

// Destroys the context: submitted work never runs.
void forget_work() {
  gone = true;
  for (FakeStream* stream : streams) stream->work.clear();
  awaited.clear();
}

int device_of(const void* context) {
  return context == &context_of_device[0] ? 0 : context == &context_of_device[1] ? 1 : -1;
}

// The stream of a caller's handle; default streams belong to the current context. Null: there is no current context.
FakeStream* stream_of(void* handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) return static_cast<FakeStream*>(handle);
  if (contexts.empty()) return nullptr;
  FakeStream* const found = &default_of_device[device_of(contexts.back())];
  found->context = contexts.back();
  return found;
}

// The device memory that contains an address; null: it is not device memory.
const FakeMemory* memory_at(std::uintptr_t at, std::size_t bytes) {
  auto next = memories.upper_bound(at);
  if (next == memories.begin()) return nullptr;
  --next;
  return at + bytes <= next->first + next->second.bytes ? &next->second : nullptr;
}

std::uint8_t* reach(void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const FakeMemory* const found = memory_at(address, 1);
  if (found == nullptr || found->reached == nullptr) return static_cast<std::uint8_t*>(at);
  return found->reached + (address - std::prev(memories.upper_bound(address))->first);
}

// Whether this call is the one that must fail. The caller holds the mutex.
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

// Submits work to a stream; returns nonzero if the call must fail with this result. The caller holds the mutex.
int hand_over(void* handle, std::function<bool()> work) {
  if (gone) return fails_with;
  if (contexts.empty()) return kInvalidContext;
  if (handle == nullptr) return kInvalidHandle;
  stream_of(handle)->work.push_back(std::move(work));
  return kSuccess;
}

int copy(const char* symbol, void* to, const void* from, std::size_t bytes, void* stream,
         std::initializer_list<std::uint64_t> on_device) {
  const std::lock_guard lock(mutex);
  int result = kSuccess;
  if (fails(symbol, &result)) return result;
  if (to == nullptr || from == nullptr) return kInvalidHandle;
  for (const std::uint64_t at : on_device) {
    if (memory_at(at, bytes) == nullptr) return gone ? fails_with : kInvalidValue;
  }
  return hand_over(stream, [=] {
    std::memcpy(reach(to), reach(const_cast<void*>(from)), bytes);
    return true;
  });
}

// Emulates calls for which the driver first waits for all submitted work. The caller holds the mutex.
void comes_last() {
  for (const unsigned* word : awaited) held_up += __atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 ? 1 : 0;
}

// The caller must hold the mutex.
int make_stream(void** stream) {
  if (contexts.empty()) return kInvalidContext;
  auto* const made = new FakeStream();
  made->context = contexts.back();
  streams.insert(made);
  *stream = made;
  ++live;
  return kSuccess;
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
FAKE int fake_cuda_held_up() {
  const std::lock_guard lock(mutex);
  return held_up;
}
FAKE int fake_cuda_waiting() {
  const std::lock_guard lock(mutex);
  std::size_t waiting = 0;
  for (const FakeStream* stream : streams) waiting += stream->work.size();
  return static_cast<int>(waiting);
}
FAKE void fake_cuda_memory(const void* at, std::size_t bytes, int device, int managed) {
  const std::lock_guard lock(mutex);
  if (bytes == 0) {
    memories.erase(reinterpret_cast<std::uintptr_t>(at));
  } else {
    memories[reinterpret_cast<std::uintptr_t>(at)] = {bytes, device, managed != 0, nullptr, ++allocations};
  }
}
FAKE void fake_cuda_capture(void* stream) {
  const std::lock_guard lock(mutex);
  captured = stream;
}
FAKE void fake_cuda_share(int on) {
  const std::lock_guard lock(mutex);
  shares = on != 0;
}
FAKE int fake_cuda_mapped() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(mapped.size());
}
FAKE void* fake_cuda_context(int device) { return &context_of_device[device]; }
FAKE std::uint64_t fake_cuda_allocate(std::size_t bytes, int device) {
  const std::lock_guard lock(mutex);
  const int file = ::memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* const reached = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (address == MAP_FAILED || reached == MAP_FAILED) std::abort();
  const std::uint64_t made = reinterpret_cast<std::uintptr_t>(address);
  memories[made] = {bytes, device, false, static_cast<std::uint8_t*>(reached), ++allocations};
  return made;
}
FAKE void fake_cuda_free(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  const FakeMemory freed = memories.at(address);
  memories.erase(address);
  ::munmap(reinterpret_cast<void*>(address), freed.bytes);
  ::munmap(freed.reached, freed.bytes);
}
FAKE std::uint8_t* fake_cuda_reach(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  return reach(reinterpret_cast<void*>(address));
}

FAKE int cuInit(unsigned) {
  BEGIN("cuInit");
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
FAKE int cuDevicePrimaryCtxRetain(void** context, int device) {
  BEGIN("cuDevicePrimaryCtxRetain");
  ++live;
  *context = &context_of_device[device];
  return result;
}
FAKE int cuDevicePrimaryCtxRelease_v2(int) {
  BEGIN("cuDevicePrimaryCtxRelease_v2");
  --live;
  return result;
}
FAKE int cuCtxPushCurrent_v2(void* context) {
  BEGIN("cuCtxPushCurrent_v2");
  if (device_of(context) < 0) return kInvalidContext;
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
  comes_last();
  std::free(memory);
  --live;
  return result;
}
FAKE int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", reinterpret_cast<void*>(to), from, bytes, stream, {to});
}
FAKE int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", to, reinterpret_cast<void*>(from), bytes, stream, {from});
}
FAKE int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync_v2", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, stream,
              {to, from});
}
FAKE int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  BEGIN("cuMemAlloc_v2");
  if (contexts.empty()) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  *address = reinterpret_cast<std::uint64_t>(memory);
  memories[*address] = {bytes, device_of(contexts.back()), false, nullptr, ++allocations};
  ++live;
  return result;
}
// Handles name memory of this process only, as the two ends of a test are in one process, and map it where it is.
FAKE int cuIpcGetMemHandle(weft::gpu::IpcHandle* handle, std::uint64_t at) {
  BEGIN("cuIpcGetMemHandle");
  if (contexts.empty()) return kInvalidContext;
  const FakeMemory* const found = memory_at(at, 1);
  if (found == nullptr || !shares) return kInvalidValue;
  const std::uint64_t words[] = {std::prev(memories.upper_bound(at))->first, found->id};
  std::memcpy(handle->bytes, words, sizeof words);
  return result;
}
FAKE int cuIpcOpenMemHandle_v2(std::uint64_t* at, weft::gpu::IpcHandle handle, unsigned) {
  BEGIN("cuIpcOpenMemHandle_v2");
  if (contexts.empty()) return kInvalidContext;
  std::uint64_t words[2] = {};
  std::memcpy(words, handle.bytes, sizeof words);
  const auto found = memories.find(words[0]);
  if (found == memories.end() || found->second.id != words[1]) return kInvalidHandle;
  live += ++mapped[words[0]] == 1 ? 1 : 0;
  *at = words[0];
  return result;
}
FAKE int cuIpcCloseMemHandle(std::uint64_t at) {
  BEGIN("cuIpcCloseMemHandle");
  comes_last();
  const auto found = mapped.find(at);
  if (found == mapped.end()) return kInvalidValue;
  if (--found->second != 0) return result;
  mapped.erase(found);
  --live;
  return result;
}
FAKE int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  BEGIN("cuDeviceCanAccessPeer");
  *can = device != peer ? 1 : 0;
  return result;
}
FAKE int cuMemFree_v2(std::uint64_t address) {
  BEGIN("cuMemFree_v2");
  if (memories.erase(address) == 0) return kInvalidValue;
  std::free(reinterpret_cast<void*>(address));
  --live;
  return result;
}
FAKE int cuModuleLoadData(void** module, const void* image) {
  BEGIN("cuModuleLoadData");
  comes_last();
  if (contexts.empty()) return kInvalidContext;
  if (image == nullptr) return kInvalidValue;
  *module = &module_of_image;
  ++live;
  return result;
}
FAKE int cuModuleUnload(void* module) {
  BEGIN("cuModuleUnload");
  comes_last();
  if (module != &module_of_image) return kInvalidHandle;
  --live;
  return result;
}
// Ignores the module's image: kernels are host functions with the same names.
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
  return hand_over(stream, kernel->prepare(blocks, parameters));
}
FAKE int cuThreadExchangeStreamCaptureMode(int* mode) {
  BEGIN("cuThreadExchangeStreamCaptureMode");
  thread_local int in_force = 0;
  std::swap(*mode, in_force);
  return result;
}
FAKE int cuStreamIsCapturing(void* stream, int* capturing) {
  BEGIN("cuStreamIsCapturing");
  *capturing = stream == captured ? 1 : 0;
  return result;
}
FAKE int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN("cuCtxGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return contexts.empty() ? kInvalidContext : result;
}
FAKE int cuStreamCreateWithPriority(void** stream, unsigned, int) {
  BEGIN("cuStreamCreateWithPriority");
  comes_last();  // the real driver may wait here for some streams; this is not documented
  return make_stream(stream);
}
FAKE int cuStreamCreate(void** stream, unsigned) {
  BEGIN("cuStreamCreate");
  return make_stream(stream);
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
  for (int naps = 0; naps < 20'000; ++naps) {
    {
      BEGIN("cuStreamSynchronize");
      FakeStream* const waited = stream_of(stream);
      if (waited == nullptr) return kInvalidContext;
      advance(waited, true);
      if (waited->work.empty()) return result;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return kNotReady;  // a defect of the test: report it, instead of waiting without end
}
FAKE int cuStreamQuery(void* stream) {
  BEGIN("cuStreamQuery");
  if (gone) return fails_with;
  FakeStream* const asked = stream_of(stream);
  if (asked == nullptr) return kInvalidContext;
  advance(asked, false);
  return asked->work.empty() ? result : kNotReady;
}
FAKE int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  BEGIN("cuStreamWaitEvent");
  const std::shared_ptr<Recorded> wanted = static_cast<FakeEvent*>(event)->last;
  if (wanted == nullptr) return result;
  stream_of(stream)->work.push_back([wanted] {
    if (!wanted->done && streams.count(wanted->stream) != 0) advance(wanted->stream, false);
    return wanted->done;
  });
  return result;
}
FAKE int cuStreamWaitValue32_v2(void* stream, std::uint64_t at, unsigned value, unsigned) {
  BEGIN("cuStreamWaitValue32_v2");
  if (contexts.empty()) return kInvalidContext;
  const auto* const word = reinterpret_cast<const unsigned*>(at);
  awaited.insert(word);
  stream_of(stream)->work.push_back([=] {
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) return false;
    const auto found = awaited.find(word);
    if (found != awaited.end()) awaited.erase(found);
    return true;
  });
  return result;
}
FAKE int cuStreamGetCtx(void* stream, void** context) {
  BEGIN("cuStreamGetCtx");
  FakeStream* const found = stream_of(stream);
  if (found == nullptr || streams.count(found) == 0) return kInvalidHandle;
  *context = found->context;
  return result;
}
FAKE int cuPointerGetAttributes(unsigned count, const int* asked, void** answers, std::uint64_t at) {
  BEGIN("cuPointerGetAttributes");
  const FakeMemory* const found = memory_at(at, 1);
  // The attributes: 2 is the memory type (its value 2: device memory), 8 is_managed, 9 the device's number.
  for (unsigned i = 0; i < count; ++i) {
    if (asked[i] == 2) *static_cast<unsigned*>(answers[i]) = found != nullptr ? 2 : 0;
    if (asked[i] == 8) *static_cast<int*>(answers[i]) = found != nullptr && found->managed ? 1 : 0;
    if (asked[i] == 9) *static_cast<int*>(answers[i]) = found != nullptr ? found->device : -2;
    if (found == nullptr) continue;
    // Further: 7 is the allocation's number, 10 whether it can be shared, 11 and 12 where it begins and its size.
    if (asked[i] == 7) *static_cast<std::uint64_t*>(answers[i]) = found->id;
    if (asked[i] == 10) *static_cast<int*>(answers[i]) = shares ? 1 : 0;
    if (asked[i] == 11) *static_cast<std::uint64_t*>(answers[i]) = std::prev(memories.upper_bound(at))->first;
    if (asked[i] == 12) *static_cast<std::uint64_t*>(answers[i]) = found->bytes;
  }
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
  FakeStream* const where = stream_of(stream);
  if (where == nullptr) return kInvalidContext;
  const auto made = std::make_shared<Recorded>();
  made->stream = where;
  static_cast<FakeEvent*>(event)->last = made;
  where->work.push_back([made] { return made->done = true; });
  return result;
}
FAKE int cuEventQuery(void* event) {
  BEGIN("cuEventQuery");
  if (gone) return fails_with;
  const std::shared_ptr<Recorded> asked = static_cast<FakeEvent*>(event)->last;
  if (asked == nullptr) return result;
  if (!asked->done && streams.count(asked->stream) != 0) advance(asked->stream, false);
  return asked->done ? result : kNotReady;
}
FAKE int cuMemGetHandleForAddressRange(void* handle, std::uint64_t at, std::size_t bytes, int, unsigned long long) {
  BEGIN("cuMemGetHandleForAddressRange");
  if (contexts.empty()) return kInvalidContext;
  if (at % 4096 != 0 || bytes % 4096 != 0) return kInvalidValue;
  const int file = ::memfd_create("fake_cuda_dmabuf", MFD_CLOEXEC);
  *static_cast<int*>(handle) = file;
  return file < 0 ? kInvalidValue : result;
}
// Times of events are not emulated.
FAKE int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  BEGIN("cuEventElapsedTime");
  const auto *a = static_cast<FakeEvent*>(from), *b = static_cast<FakeEvent*>(to);
  if (a->last == nullptr || b->last == nullptr) return kInvalidHandle;
  if (!a->last->done || !b->last->done) return kNotReady;
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
