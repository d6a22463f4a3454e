// A profiler plugin for tests of WEFT_PROFILER_CHAIN. It wants all events, checks that every handle that it gets is one
// of its own and in use, and writes counts to the file that CHAIN_REPORT names. It has versions 2 to 7. CHAIN_FAULT
// makes it misbehave: `init` fails, `start` fails, `segv` and `abort` crash, `overflow` and `thread_overflow` use up
// the stack of the first thread or of another one, `mask` wants only operations until the first one, `late` leaves the
// mask as it is until chained_enable() is called, `twins` crashes as await_twin() says.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "native/plugin/profiler/abi_v2.h"
#include "native/plugin/profiler/abi_v3.h"
#include "native/plugin/profiler/abi_v4.h"
#include "native/plugin/profiler/abi_v5.h"
#include "native/plugin/profiler/abi_v6.h"
#include "native/plugin/profiler/abi_v7.h"

namespace weft::nccl {
namespace {

struct Event {
  std::uint64_t type;
  bool stopped;
};
struct Report {
  std::mutex mutex;
  std::map<void*, Event> events;  // never erased, so that a stale handle is recognised
  std::map<std::string, long> counts;
  int* mask = nullptr;
};
Report& report() {
  static auto* const made = new Report;
  return *made;
}
bool fault(const char* name) {
  const char* const chosen = std::getenv("CHAIN_FAULT");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}
char context_mark;

void choose(int types) { __atomic_store_n(report().mask, types, __ATOMIC_RELAXED); }

void write_report() {
  const char* const path = std::getenv("CHAIN_REPORT");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  std::fputs("{", file);
  const char* between = "";
  for (const auto& [name, count] : report().counts) {
    std::fprintf(file, "%s\"%s\": %ld", between, name.c_str(), count);
    between = ", ";
  }
  std::fputs("}\n", file);
  std::fclose(file);
}

Result begin(void** context, int* mask) {
  if (fault("init")) return Result::internal_error;
  *context = &context_mark;
  report().mask = mask;
  if (!fault("late")) choose(fault("mask") ? static_cast<int>(kEventCollective) : 0xFFF);
  return Result::success;
}
Result init_v2(void** context, int* mask) { return begin(context, mask); }
Result init_v4(void** context, int* mask, const char*, std::uint64_t, int, int, int, Logger log) {
  log(kLogInfo, kLogInit, "chained", 0, "chained: init");
  return begin(context, mask);
}
Result init_v5(void** context, std::uint64_t, int* mask, const char*, int, int, int, Logger log) {
  return init_v4(context, mask, nullptr, 0, 0, 0, 0, log);
}

bool known(void* event) { return event == nullptr || report().events.contains(event); }

// Calls itself until the stack is used up.
[[gnu::noinline]] int overflow(int calls) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(calls);
  return calls == 0 ? 0 : overflow(calls - 1) + frame[0];
}

// Called by two threads. The thread that starts a group waits for the other thread, and then crashes. The other thread
// starts a group of API calls, and stays in that call until the process ends.
void await_twin(std::uint64_t type) {
  static std::atomic<bool> one{false}, two{false};
  if (type == kEventGroup) {
    one.store(true);
    while (!two.load()) std::this_thread::yield();
    ::raise(SIGSEGV);
  } else if (type == kEventGroupApi) {
    while (!one.load()) std::this_thread::yield();
    two.store(true);
    for (;;) ::pause();
  }
}

template <typename Descriptor>
Result start(void* context, void** event, Descriptor* from) {
  if (fault("segv")) ::raise(SIGSEGV);
  if (fault("abort")) std::abort();
  if (fault(::syscall(SYS_gettid) == ::getpid() ? "overflow" : "thread_overflow")) {
    static std::mutex one_thread;
    one_thread.lock();
    return static_cast<Result>(overflow(1 << 30));
  }
  if (fault("twins")) await_twin(from->type);
  if (fault("start")) return Result::internal_error;
  const std::lock_guard lock(report().mutex);
  auto& counts = report().counts;
  if (context != &context_mark) ++counts["foreign contexts"];
  const std::uint64_t type = from->type;
  const bool proxy_of_another_process = type == kEventProxyOp && from->parent == reinterpret_cast<void*>(0xdead'beef);
  if (!proxy_of_another_process && !known(from->parent)) ++counts["foreign parents"];
  if (from->parent != nullptr) ++counts["children " + std::to_string(type)];
  if constexpr (requires { from->collective.parent_group; }) {
    if (type == kEventCollective && !known(from->collective.parent_group)) ++counts["foreign groups"];
    if (type == kEventCollective && from->collective.parent_group != nullptr) ++counts["groups"];
  }
  ++counts["started " + std::to_string(type)];
  auto* const made = std::malloc(16);  // never freed, so that each event has an address of its own
  report().events[made] = {type, false};
  *event = made;
  if (fault("mask")) choose(0xFFF);
  return Result::success;
}

Result stop(void* event) {
  const std::lock_guard lock(report().mutex);
  const auto found = report().events.find(event);
  if (found == report().events.end()) {
    ++report().counts["foreign stops"];
  } else {
    ++report().counts["stopped " + std::to_string(found->second.type)];
    found->second.stopped = true;
  }
  return Result::success;
}

template <typename Arguments>
Result record(void* event, int, Arguments*) {
  const std::lock_guard lock(report().mutex);
  ++report().counts[known(event) && event != nullptr ? "states" : "foreign states"];
  return Result::success;
}

Result finalize(void* context) {
  const std::lock_guard lock(report().mutex);
  ++report().counts[context == &context_mark ? "finalized" : "foreign contexts"];
  write_report();
  return Result::success;
}

}  // namespace
}  // namespace weft::nccl

#define CHAINED(version, init)                                                                                       \
  __attribute__((visibility("default"), used)) weft::nccl::profiler_v##version::Profiler ncclProfiler_v##version = { \
      "chained",                                                                                                     \
      weft::nccl::init,                                                                                              \
      weft::nccl::start<weft::nccl::profiler_v##version::Descriptor>,                                                \
      weft::nccl::stop,                                                                                              \
      weft::nccl::record<weft::nccl::profiler_v##version::StateArguments>,                                           \
      weft::nccl::finalize};
extern "C" {
CHAINED(2, init_v2)
CHAINED(3, init_v2)
CHAINED(4, init_v4)
CHAINED(5, init_v5)
CHAINED(6, init_v5)
CHAINED(7, init_v5)
__attribute__((visibility("default"), used)) void chained_enable() { weft::nccl::choose(0xFFF); }
}
