// Loads a chained profiler with dlopen, and installs signal handlers that tell whether a crash happened in its calls.
#include "native/plugin/profiler/chain_library.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <string_view>

#include "native/engine/knobs.h"
#include "native/files/trusted_file.h"
#include "native/plugin/plugin.h"

namespace weft::nccl {
namespace {

// A thread that has called the chained profiler, as an entry of a list. A signal handler cannot use a thread-local
// variable of a loaded library instead, because its first use allocates memory. An entry is never freed; when its
// thread has ended, another thread uses it.
struct Caller {
  std::atomic<pid_t> thread{0};  // the thread that uses this entry; 0: the entry is free
  std::atomic<bool> is_calling{false};
  Caller* next = nullptr;
};
std::atomic<Caller*> callers{nullptr};

pid_t this_thread() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// Takes an entry for this thread; null: memory ran out.
Caller* take_caller() noexcept {
  for (Caller* each = callers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    pid_t none = 0;
    if (each->thread.compare_exchange_strong(none, this_thread(), std::memory_order_acq_rel)) return each;
  }
  auto* const made = new (std::nothrow) Caller;
  if (made == nullptr) return nullptr;
  made->thread.store(this_thread(), std::memory_order_relaxed);
  made->next = callers.load(std::memory_order_relaxed);
  while (!callers.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

// A stack for this thread's signal handlers, so that on_crash() runs also if the thread has used up its own. Not made
// if the thread has such a stack already. It is large, because the handlers that were installed before run on it too.
class SignalStack {
 public:
  SignalStack() noexcept {
    stack_t present{};
    if (::sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_t made{};
    made.ss_sp = memory;
    made.ss_size = kBytes;
    if (::mprotect(memory, kGuardBytes, PROT_NONE) == 0 && ::sigaltstack(&made, nullptr) == 0) {
      memory_ = memory;
    } else {
      ::munmap(memory, kBytes);
    }
  }
  // If the program has set another stack for the thread since, this object's stack stays mapped: the program may have
  // saved it, in order to restore it later.
  ~SignalStack() {
    stack_t present{};
    if (memory_ == nullptr || ::sigaltstack(nullptr, &present) != 0 || present.ss_sp != memory_) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    if (::sigaltstack(&none, nullptr) == 0) ::munmap(memory_, kBytes);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kBytes = 256 << 10, kGuardBytes = 64 << 10;  // the guard is a whole page on any system
  void* memory_ = nullptr;
};

// Notes that this thread enters or leaves a call of the chained profiler.
void note_call(bool is_calling) noexcept {
  struct Taken {
    Caller* caller = take_caller();
    SignalStack stack;
    ~Taken() {
      if (caller != nullptr) caller->thread.store(0, std::memory_order_release);
      caller = nullptr;  // destructors that run later may still call note_call()
    }
  };
  thread_local Taken taken;
  if (taken.caller != nullptr) taken.caller->is_calling.store(is_calling, std::memory_order_relaxed);
}

// The entry of this thread if it is in a call of the chained profiler; null: it is not.
Caller* caller_in_call() noexcept {
  const pid_t thread = this_thread();
  for (Caller* each = callers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    const bool is_this = each->thread.load(std::memory_order_relaxed) == thread;
    if (is_this && each->is_calling.load(std::memory_order_relaxed)) return each;
  }
  return nullptr;
}

constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
std::array<struct sigaction, NSIG> previous{};
std::array<char, 512> crash_text{};
std::size_t crash_length = 0;

// Names the chained profiler if the signal hit a thread in one of its calls, then passes the signal to the handler that
// was installed before.
void on_crash(int signal, siginfo_t* info, void* machine) {
  if (Caller* const caller = caller_in_call()) {
    caller->is_calling.store(false, std::memory_order_relaxed);  // a crash in the handler below adds no second line
    static_cast<void>(!::write(STDERR_FILENO, crash_text.data(), crash_length));
  }
  const struct sigaction& before = previous[static_cast<std::size_t>(signal)];
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, machine);
  } else if (before.sa_handler != SIG_DFL) {
    before.sa_handler(signal);
  } else {
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    static_cast<void>(::sigaction(signal, &standard, nullptr));
    // A fault occurs again when this handler returns; a signal that a process sent (si_code <= 0) must be raised again.
    if (info->si_code <= 0) static_cast<void>(::raise(signal));
  }
}

void attribute_crashes(const std::string& path) noexcept {
  const int length = std::snprintf(crash_text.data(), crash_text.size(),
                                   "weft: the process crashed in a call of the profiler that WEFT_PROFILER_CHAIN names "
                                   "(%s), not in weft or NCCL\n",
                                   path.c_str());
  crash_length = std::min(static_cast<std::size_t>(std::max(length, 0)), crash_text.size() - 1);
  for (const int signal : kCrashes) {
    struct sigaction& before = previous[static_cast<std::size_t>(signal)];
    if (::sigaction(signal, nullptr, &before) != 0) continue;
    // Signals that the program ignores stay ignored. With a handler they would interrupt system calls, and programs
    // that this process starts would not inherit that they are ignored.
    if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN) continue;
    struct sigaction ours{};
    ours.sa_sigaction = on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    static_cast<void>(::sigaction(signal, &ours, nullptr));
  }
}

}  // namespace

ChainCall::ChainCall() noexcept { note_call(true); }
ChainCall::~ChainCall() { note_call(false); }

ChainLibrary& ChainLibrary::instance() noexcept {
  static auto* const instance = new ChainLibrary;  // not destroyed: other threads may use it until the process ends
  return *instance;
}

// Opens the library as NCCL opens NCCL_PROFILER_PLUGIN: by its name, then as libnccl-profiler-NAME.so. Returns the
// problem; empty: the library is open, or WEFT_PROFILER_CHAIN names none.
std::string ChainLibrary::open() {
  engine::Knobs knobs;
  std::string error;
  // Knobs with errors are logged by the profiler, which reads them too.
  if (engine::load_knobs(&knobs, &error) != Status::ok || knobs.profiler_chain.empty()) return "";
  path_ = knobs.profiler_chain;
  std::string path = path_;  // without a slash, dlopen searches the system's directories
  if (path_.find('/') != std::string::npos && !files::check_library(path_, &path, &error)) return error;
  library_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* const why = ::dlerror();
    error = why == nullptr ? "unknown error" : why;
    if (path_.find('/') == std::string::npos) {
      library_ = ::dlopen(("libnccl-profiler-" + path_ + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  if (library_ == nullptr) return "cannot load it: " + error;
  attribute_crashes(path_);
  return "";
}

std::string ChainLibrary::find(int version) {
  const std::string symbol = "ncclProfiler_v" + std::to_string(version);
  void* const found = ::dlsym(library_, symbol.c_str());
  if (found != nullptr) {
    // Every version of the table begins with the profiler's name.
    const char* const name = *static_cast<const char* const*>(found);
    if (name != nullptr && std::string_view(name) == kName) return "it is weft's own profiler";
    tables_[static_cast<std::size_t>(version)].store(found, std::memory_order_release);
    return "";
  }
  std::string others;
  for (int other = 1; other <= kVersionMax; ++other) {
    if (::dlsym(library_, ("ncclProfiler_v" + std::to_string(other)).c_str()) == nullptr) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(other);
  }
  if (others.empty()) return "it is no profiler plugin: it has no ncclProfiler_v1 to ncclProfiler_v7";
  return "this NCCL uses " + symbol + ", which this library lacks; the library has versions " + others;
}

void* ChainLibrary::load(int version, Logger log) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    std::string error;
    if (!tried_) {
      tried_ = true;
      error = open();
    }
    bool& looked_up = looked_up_[static_cast<std::size_t>(version)];
    if (library_ != nullptr && !looked_up) {
      looked_up = true;
      error = find(version);
    }
    if (!error.empty() && log != nullptr) {
      log(kLogWarn, kLogInit, "weft", 0, "PROFILER/weft: the profiler in WEFT_PROFILER_CHAIN=%s is not called: %s",
          path_.c_str(), error.c_str());
    }
  } catch (const std::bad_alloc&) {  // out of memory: the chained profiler is not called
  }
  return table(version);
}

}  // namespace weft::nccl
