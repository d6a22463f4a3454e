// Plays NCCL to a profiler library: `host LIBRARY VERSION`, with versions 1 to 7. It profiles an AllReduce and a Send
// as NCCL does, misuses handles in every way that NCCL has been seen to, and fails if a call fails or takes long.
// HOST_PLAY adds a part: `joins` initialises further communicators while the first one runs; `enables` lets the chained
// profiler choose its events only after init; `many` uses a captured call and an open group again after 300,000 events;
// `twins` crashes one of two threads that are in the chained profiler; `crashes` crashes outside of it; `ignores`
// ignores SIGABRT from before init on.
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "native/plugin/profiler/abi_v1.h"
#include "native/plugin/profiler/abi_v2.h"
#include "native/plugin/profiler/abi_v3.h"
#include "native/plugin/profiler/abi_v4.h"
#include "native/plugin/profiler/abi_v5.h"
#include "native/plugin/profiler/abi_v6.h"
#include "native/plugin/profiler/abi_v7.h"

namespace {

using namespace weft::nccl;

#define REQUIRE(condition)                                                          \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

constexpr std::uint64_t kCommId = 0x1234'5678'9abc'def0;
constexpr int kRanks = 4, kRank = 1, kChannels = 2, kSteps = 6;
constexpr std::size_t kStepBytes = 1000;

bool plays(const char* part) {
  const char* const chosen = std::getenv("HOST_PLAY");
  return chosen != nullptr && std::strcmp(chosen, part) == 0;
}

// Watches NCCL's mask of event types, which all communicators share. If a type that was set at watch() is missing at a
// later look(), its events were lost in between.
struct MaskWatch {
  const int* mask = nullptr;
  int before = 0;
  std::atomic<int> lost{0};
  void watch(const int* watched) { mask = watched, before = *watched; }
  void look() { lost.fetch_or(mask == nullptr ? 0 : before & ~__atomic_load_n(mask, __ATOMIC_RELAXED)); }
};
MaskWatch mask_watch;

void print(int, unsigned long, const char*, int, const char* format, ...) {
  mask_watch.look();
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

template <typename Table, typename Descriptor, typename Arguments>
struct Host {
  Table* table;
  int version;
  void* context = nullptr;
  int mask = plays("enables") ? 0 : -1;  // NCCL's is 0 before the first init

  bool tells_communicator_first() const { return version >= 4; }

  void* start(Descriptor descriptor) {
    void* event = &descriptor;  // NCCL does not clear this pointer before the call
    REQUIRE(table->start_event(context, &event, &descriptor) == Result::success);
    return event;
  }
  void stop(void* event) { REQUIRE(table->stop_event(event) == Result::success); }
  void state(void* event, int state, std::size_t bytes) {
    Arguments arguments{};
    if constexpr (requires { arguments.proxy_op; }) {
      arguments.proxy_op.transferred_bytes = bytes;
    } else {
      arguments.transferred_bytes = bytes;
    }
    REQUIRE(table->record_event_state(event, state, &arguments) == Result::success);
  }

  static Descriptor descriptor(std::uint64_t type, void* parent) {
    Descriptor made{};
    made.type = static_cast<decltype(made.type)>(type);
    made.parent = parent;
    made.rank = kRank;
    return made;
  }
  template <typename Operation>
  void name(Operation* operation) {
    if constexpr (requires { operation->comm_hash; }) {
      operation->comm_hash = kCommId;
      operation->name = "training";
    }
  }

  void* collective(std::uint64_t sequence, std::size_t count, void* api = nullptr, void* group = nullptr) {
    Descriptor made = descriptor(kEventCollective, api);
    auto& from = made.collective;
    name(&from);
    if constexpr (requires { from.parent_group; }) from.parent_group = group;
    from.sequence = sequence;
    from.count = count;
    from.root = 0;
    if constexpr (requires { from.channels; }) {
      from.channels = kChannels;
    } else {
      from.channels_max = kChannels;
    }
    if constexpr (std::is_same_v<decltype(from.function), std::uint8_t>) {
      from.function = 4, from.datatype = 7, from.algorithm = 1, from.protocol = 2;
    } else {
      from.function = "AllReduce", from.datatype = "ncclFloat32", from.algorithm = "RING", from.protocol = "SIMPLE";
    }
    if constexpr (requires { from.tag; }) from.tag = 77;
    return start(made);
  }
  void* send(int peer, std::size_t count) {
    Descriptor made = descriptor(kEventPointToPoint, nullptr);
    auto& from = made.point_to_point;
    name(&from);
    from.count = count;
    from.peer = peer;
    if constexpr (std::is_same_v<decltype(from.function), std::uint8_t>) {
      from.function = 6, from.datatype = 0;
    } else {
      from.function = "Send", from.datatype = "ncclInt8";
    }
    return start(made);
  }
  void* proxy_op(void* parent, std::uint8_t channel, int peer, int sends, std::int32_t pid) {
    Descriptor made = descriptor(kEventProxyOp, parent);
    made.proxy_op = {pid, channel, peer, kSteps, 4096, sends};
    return start(made);
  }

  // Records the steps of one channel in one direction; the last step carries no bytes.
  void transfer(void* op, bool sends) {
    for (int i = 0; i < kSteps; ++i) {
      Descriptor made = descriptor(kEventProxyStep, op);
      made.proxy_step = i;
      void* const step = start(made);
      // NCCL starts a step again, without stopping it, while the network cannot take it: the event is the same.
      REQUIRE(step != nullptr && start(made) == step);
      const std::size_t bytes = i + 1 == kSteps ? 0 : kStepBytes;
      const std::size_t told = version >= 4 ? bytes : 0;
      if (sends) {
        state(step, kStateSendGpuWait, 0);
        if (version >= 4) state(step, kStateSendPeerWait, 0);
        state(step, kStateSendWait, told);
        if (version < 4) state(op, kStateOpSendTransmitted, kStepBytes * static_cast<std::size_t>(i));
      } else {
        state(step, kStateReceiveWait, 0);
        state(step, kStateReceiveFlushWait, told);
        state(step, kStateReceiveGpuWait, 0);
        if (version < 4) state(op, kStateOpReceived, kStepBytes * static_cast<std::size_t>(i));
      }
      stop(step);
      stop(step);  // a step that was started twice is stopped twice
    }
  }

  void run_kernel(void* operation, std::uint8_t channel) {
    if constexpr (requires(Descriptor d) { d.kernel; }) {
      Descriptor made = descriptor(kEventKernelChannel, operation);
      made.kernel = {channel, 1000};
      void* const kernel = start(made);
      Arguments arguments{};
      arguments.kernel_timer_ns = 3000;
      REQUIRE(table->record_event_state(kernel, kStateKernelChannelStop, &arguments) == Result::success);
      stop(kernel);
    }
  }

  void operate(std::uint64_t sequence) {
    const bool wants_kernels = (mask & static_cast<int>(kEventKernelChannel)) != 0;  // read before the operation begins
    // Only a chained profiler may want events of groups and of API calls, which are stopped before their children
    // start.
    void* const group = start(descriptor(kEventGroup, nullptr));
    Descriptor call = descriptor(kEventCollectiveApi, nullptr);
    if constexpr (requires { call.collective_api; }) call.collective_api.is_captured = sequence == 1;
    void* const api = start(call);
    stop(api);
    stop(group);
    void* const all_reduce = collective(sequence, 1 << 20, api, group);
    REQUIRE(all_reduce != nullptr);
    stop(all_reduce);  // NCCL stops an operation when it is enqueued; events of its channels follow
    for (std::uint8_t channel = 0; channel < kChannels; ++channel) {
      void* const out = proxy_op(all_reduce, channel, (kRank + 1) % kRanks, 1, ::getpid());
      void* const in = proxy_op(all_reduce, channel, kRank - 1, 0, ::getpid());
      REQUIRE(out != nullptr && in != nullptr && out != in);
      transfer(out, true);
      transfer(in, false);
      if constexpr (requires(Descriptor d) { d.kernel; }) {
        if (wants_kernels) run_kernel(all_reduce, channel);
      }
      stop(out);
      stop(in);
      stop(in);
      state(in, kStateReceiveWait, 1);
    }
    void* const sent = send(3, 5000);
    void* const op = proxy_op(sent, 0, 3, 1, ::getpid());
    transfer(op, true);
    stop(op);
    stop(sent);
  }

  // A replay of a captured graph names a call as its parent long after NCCL has stopped the call, so captured calls are
  // kept. Other calls are forgotten after many events.
  void operate_after_many() {
    void* const group = start(descriptor(kEventGroupApi, nullptr));
    Descriptor call = descriptor(kEventCollectiveApi, group);
    void* const plain = start(call);
    if constexpr (requires { call.collective_api; }) call.collective_api.is_captured = true;
    void* const captured = start(call);
    stop(plain);
    stop(captured);
    for (int i = 0; i < 300'000; ++i) stop(start(descriptor(kEventCollectiveApi, group)));
    stop(collective(1001, 10, captured));
    stop(collective(1002, 10, plain));
    stop(group);
  }

  // A forked child inherits the library; nothing that it calls is recorded or fails.
  void operate_in_child() {
    void* const event = collective(99, 1);
    REQUIRE(event == nullptr);
    stop(proxy_op(nullptr, 0, 0, 1, ::getpid()));
  }
  // Sends events after finalize, as threads that still run do: no call may fail, and no new operation is recorded.
  void transfer_after_the_end(void* op) {
    static_cast<void>(start(descriptor(kEventProxyStep, op)));
    stop(op);
    REQUIRE(collective(100, 1) == nullptr);
    REQUIRE(proxy_op(nullptr, 0, 0, 1, ::getpid()) == nullptr);
  }

  // Calls with invalid handles, and with handles of another process or of ended events, must be harmless.
  void misuse() {
    stop(nullptr);
    state(nullptr, kStateSendWait, 1);
    for (const std::uintptr_t odd : {std::uintptr_t{1}, ~std::uintptr_t{0}, std::uintptr_t{0xC7} << 56,
                                     std::uintptr_t{0xC8} << 56, (std::uintptr_t{0xC8} << 56) + (1 << 20) + 262'143}) {
      auto* const event = reinterpret_cast<void*>(odd);
      stop(event);
      state(event, kStateSendWait, 1);
      static_cast<void>(start(descriptor(kEventProxyStep, event)));
      stop(proxy_op(event, 0, 2, 1, ::getpid()));
    }
    // A proxy that works for another process (PXN): the operation's parent is a pointer of the other process.
    void* const foreign = proxy_op(reinterpret_cast<void*>(0xdead'beef), 1, 2, 1, ::getpid() + 1);
    REQUIRE(foreign != nullptr);
    stop(foreign);
    static_cast<void>(start(descriptor(std::uint64_t{1} << 5, nullptr)));
    void* const group = start(descriptor(kEventGroup, nullptr));
    stop(group);
    void* event = this;
    Descriptor made = descriptor(kEventCollective, nullptr);
    REQUIRE(table->start_event(nullptr, &event, &made) == Result::success && event == nullptr);
  }
};

template <typename Table>
void init(Table* table, void** context, int* mask) {
  if constexpr (requires { table->init(context, mask); }) {
    REQUIRE(table->init(context, mask) == Result::success);
  } else if constexpr (requires { table->init(context, mask, "", kCommId, 0, 0, 0, print); }) {
    REQUIRE(table->init(context, mask, "training", kCommId, 2, kRanks, kRank, print) == Result::success);
  } else {
    REQUIRE(table->init(context, kCommId, mask, "training", 2, kRanks, kRank, print) == Result::success);
  }
}

// While communicators are initialised, the events of one that runs must not be lost.
template <typename Table>
void join_others(Table* table, int* mask) {
  mask_watch.watch(mask);
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done.load()) mask_watch.look();
  });
  void* context = nullptr;
  for (int i = 0; i < 200; ++i) init(table, &context, mask);
  done.store(true);
  watcher.join();
  REQUIRE(mask_watch.lost.load() == 0);
  REQUIRE(table->finalize(context) == Result::success);
}

// Lets the chained profiler choose all events after init. It writes the mask that it got in init: NCCL's own, or a
// separate one that weft merges into NCCL's at the next call. NCCL makes no call while its mask is 0; then the change
// must be in its mask at once.
template <typename AnyHost>
void enable(AnyHost* host) {
  void* const chained = ::dlopen(std::getenv("WEFT_PROFILER_CHAIN"), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(chained != nullptr);
  const bool called = host->mask != 0;
  reinterpret_cast<void (*)()>(::dlsym(chained, "chained_enable"))();
  if (called) host->stop(host->start(AnyHost::descriptor(kEventProxyControl, nullptr)));
  REQUIRE((host->mask & 0xFFF) == 0xFFF);
}

// Two threads, whose ids differ by a multiple of 256, are in calls of the chained profiler; the first one crashes.
template <typename AnyHost>
[[noreturn]] void crash_beside_a_twin(AnyHost* host) {
  std::atomic<long> first{0};
  std::thread([&] {
    first.store(::syscall(SYS_gettid));
    host->start(AnyHost::descriptor(kEventGroup, nullptr));
  }).detach();
  while (first.load() == 0) std::this_thread::yield();
  for (;;) {
    std::thread([&] {
      if ((::syscall(SYS_gettid) - first.load()) % 256 == 0) host->start(AnyHost::descriptor(kEventGroupApi, nullptr));
    }).join();
  }
}

bool ignores_abort() {
  struct sigaction now{};
  REQUIRE(::sigaction(SIGABRT, nullptr, &now) == 0);
  return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
}

template <typename Table, typename Descriptor, typename Arguments>
int play(void* library, int version) {
  auto* const table = static_cast<Table*>(::dlsym(library, ("ncclProfiler_v" + std::to_string(version)).c_str()));
  REQUIRE(table != nullptr && std::string(table->name) == "weft");
  Host<Table, Descriptor, Arguments> host{table, version};
  if (plays("ignores")) ::signal(SIGABRT, SIG_IGN);
  init(table, &host.context, &host.mask);
  if (std::getenv("WEFT_TRACE") == nullptr && std::getenv("WEFT_PROFILER_CHAIN") == nullptr) {
    REQUIRE(host.mask == 0 && host.context == nullptr);
    host.stop(host.start(Host<Table, Descriptor, Arguments>::descriptor(kEventCollective, nullptr)));
    REQUIRE(table->finalize(host.context) == Result::success);
    return 0;
  }
  if (plays("enables")) enable(&host);
  REQUIRE((host.mask & static_cast<int>(kEventCollective | kEventProxyStep)) != 0 && host.context != nullptr);
  if (plays("twins")) crash_beside_a_twin(&host);
  host.operate(1);
  if (plays("ignores")) REQUIRE(ignores_abort() && ::raise(SIGABRT) == 0 && ignores_abort());
  if (plays("crashes")) ::raise(SIGSEGV);
  host.misuse();
  if (plays("many")) host.operate_after_many();
  if (plays("joins")) join_others(table, &host.mask);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { host.operate(10 + i); });
  for (std::thread& thread : threads) thread.join();
  void* const late = host.collective(2, 10);
  void* const op = host.proxy_op(late, 0, 0, 1, ::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    host.operate_in_child();
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(status == 0);
  if (std::getenv("HOST_DIES") != nullptr) {
    ::alarm(300);
    for (;;) ::pause();  // the test kills it when it has read the records
  }
  std::fprintf(stderr, "mask %#x\n", static_cast<unsigned>(host.mask));
  REQUIRE(table->finalize(host.context) == Result::success);
  host.transfer_after_the_end(op);
  REQUIRE(table->finalize(host.context) == Result::success);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc == 3);
  ::alarm(60);
  void* const library = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  REQUIRE(library != nullptr);
  switch (const int version = std::atoi(argv[2]); version) {
#define PLAY(number)                                                                                               \
  case number:                                                                                                     \
    return play<profiler_v##number::Profiler, profiler_v##number::Descriptor, profiler_v##number::StateArguments>( \
        library, version)
    PLAY(1);
    PLAY(2);
    PLAY(3);
    PLAY(4);
    PLAY(5);
    PLAY(6);
    PLAY(7);
    default:
      return 2;
  }
}
