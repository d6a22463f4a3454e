// Loads a library at run time, calls its profiler as NCCL does, and times the calls.
#include "bench/native/loops/profiler_bench.h"

#include <dlfcn.h>
#include <unistd.h>

#include "native/engine/clock.h"
#include "native/plugin/profiler/abi_v5.h"
#include "native/plugin/profiler/net_message.h"

namespace weft::bench {
namespace {

using nccl::profiler_v5::Descriptor;
using nccl::profiler_v5::Profiler;
using nccl::profiler_v5::StateArguments;

// Calls the profiler as NCCL does, and counts the calls.
class Caller {
 public:
  Caller(Profiler* table, void* context) : table_(table), context_(context) {}

  void operation(std::uint64_t sequence, int channels, int steps) {
    Descriptor made = descriptor(nccl::kEventCollective, nullptr);
    made.collective.sequence = sequence;
    made.collective.function = "AllReduce";
    made.collective.count = 2;
    made.collective.datatype = "ncclFloat32";
    made.collective.channels = static_cast<std::uint8_t>(channels);
    made.collective.algorithm = "RING";
    made.collective.protocol = "SIMPLE";
    void* const operation = start(made);
    stop(operation);
    for (int i = 0; i < channels; ++i) {
      for (const bool sends : {true, false}) channel(operation, i, sends, steps);
    }
  }
  std::int64_t calls() const { return calls_; }

 private:
  static Descriptor descriptor(std::uint64_t type, void* parent) {
    Descriptor made{};
    made.type = type;
    made.parent = parent;
    return made;
  }
  void channel(void* operation, int number, bool sends, int steps) {
    Descriptor made = descriptor(nccl::kEventProxyOp, operation);
    made.proxy_op = {pid_, static_cast<std::uint8_t>(number), 1, steps, 1 << 19, sends ? 1 : 0};
    void* const op = start(made);
    for (int i = 0; i < steps; ++i) step(op, i, sends);
    stop(op);
  }
  void step(void* op, int number, bool sends) {
    Descriptor made = descriptor(nccl::kEventProxyStep, op);
    made.proxy_step = number;
    void* const step = start(made);
    nccl::NetMessage message;
    Descriptor net = descriptor(nccl::kEventNetPlugin, step);
    net.net = {nccl::kNetPluginId, &message};
    if (sends) {
      state(step, nccl::kStateSendGpuWait, 0);
      state(step, nccl::kStateSendPeerWait, 0);
      start(net);
      state(step, nccl::kStateSendWait, 8);
    } else {
      start(net);
      state(step, nccl::kStateReceiveWait, 0);
      state(step, nccl::kStateReceiveFlushWait, 8);
      state(step, nccl::kStateReceiveGpuWait, 0);
    }
    stop(step);
  }
  void* start(Descriptor made) {
    ++calls_;
    void* event = nullptr;
    static_cast<void>(table_->start_event(context_, &event, &made));
    return event;
  }
  void stop(void* event) {
    ++calls_;
    static_cast<void>(table_->stop_event(event));
  }
  void state(void* event, int state, std::size_t bytes) {
    ++calls_;
    StateArguments arguments{};
    arguments.transferred_bytes = bytes;
    static_cast<void>(table_->record_event_state(event, state, &arguments));
  }

  Profiler* const table_;
  void* const context_;
  const std::int32_t pid_ = ::getpid();
  std::int64_t calls_ = 0;
};

}  // namespace

Status bench_profiler(const std::string& library, std::int64_t operations, int channels, int steps,
                      ProfilerBenchResult* out, std::string* error) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: it may have threads
  auto* const table = opened == nullptr ? nullptr : static_cast<Profiler*>(::dlsym(opened, "ncclProfiler_v5"));
  void* context = nullptr;
  int mask = 0;
  if (table != nullptr) {
    static_cast<void>(table->init(&context, 1, &mask, "bench", 1, 2, 0, nullptr));
  }
  if (mask == 0) {
    *error = library + ": its profiler requests no events: set WEFT_TRACE to a directory";
    return Status::invalid_argument;
  }
  Caller caller(table, context);
  // Between groups of kAtOnce operations the benchmark sleeps, outside of the measured time, so that the thread that
  // writes the trace can empty the rings. If a ring were full, records would be dropped, which takes less time than
  // storing them.
  constexpr std::int64_t kAtOnce = 64;
  constexpr useconds_t kPauseUs = 25'000;
  std::int64_t spent_ns = 0;
  for (std::int64_t done = 0; done < operations; done += kAtOnce) {
    const std::int64_t begun = engine::now_ns();
    for (std::int64_t i = 0; i < kAtOnce; ++i) {
      caller.operation(static_cast<std::uint64_t>(done + i), channels, steps);
    }
    spent_ns += engine::now_ns() - begun;
    ::usleep(kPauseUs);
  }
  const std::int64_t count = (operations + kAtOnce - 1) / kAtOnce * kAtOnce;
  out->ns_per_operation = static_cast<double>(spent_ns) / static_cast<double>(count);
  out->calls_per_operation = caller.calls() / count;
  static_cast<void>(table->finalize(context));
  return Status::ok;
}

}  // namespace weft::bench
