// An operation's handle is the id of its trace record, not an entry of the event pool, because NCCL refers to
// operations long after it has stopped them.
#include "native/plugin/profiler/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "native/engine/clock.h"
#include "native/engine/trace/open_trace.h"
#include "native/plugin/fork_check.h"
#include "native/plugin/profiler/call_time.h"

namespace weft::nccl {
namespace {

using engine::now_ns;

constexpr std::uint64_t kMask = kEventCollective | kEventPointToPoint | kEventProxyOp | kEventProxyStep |
                                kEventNetPlugin | kEventCopyCollective | kEventCollectiveApi | kEventPointToPointApi;
constexpr std::int64_t kFlushNs = 1'000'000'000;

// The handle of an operation has its record's id in the lowest 32 bits, and above them whether the times of its kernels
// are recorded.
constexpr std::uintptr_t kWithKernels = std::uintptr_t{1} << 32;
void* handle_of(std::uint32_t record, bool with_kernels) noexcept {
  return reinterpret_cast<void*>(std::uintptr_t{static_cast<std::uint8_t>(HandleKind::operation)} << 56 |
                                 (with_kernels ? kWithKernels : 0) | std::uintptr_t{record});
}
// Id of the trace record of the operation that a handle names; 0: the handle names no operation.
std::uint32_t operation_of(const void* handle) noexcept {
  const auto bits = reinterpret_cast<std::uintptr_t>(handle) & ~kWithKernels;
  constexpr auto kind = std::uintptr_t{static_cast<std::uint8_t>(HandleKind::operation)};
  return bits >> 32 == kind << 24 ? static_cast<std::uint32_t>(bits) : 0;
}
bool has_kernels(const void* operation) noexcept {
  return (reinterpret_cast<std::uintptr_t>(operation) & kWithKernels) != 0;
}

// The handle of an API call holds the call's time instead of a record's id, because a call has no record: see
// call_time.h.
void* handle_of_call(std::int64_t time_ns, bool is_captured) noexcept {
  return reinterpret_cast<void*>(std::uintptr_t{static_cast<std::uint8_t>(HandleKind::api_call)} << 56 |
                                 packed_call(time_ns, is_captured));
}
bool is_call(const void* handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle) >> 56 == static_cast<std::uint8_t>(HandleKind::api_call);
}

// A text that this thread has looked up. NCCL names functions, types and algorithms by the same pointers each time; the
// contents are compared too, because a name's memory can be used again.
struct KnownText {
  const engine::TraceWriter* writer = nullptr;
  std::uint32_t id = 0;
  char text[36] = "";
};
constexpr std::size_t kKnownTexts = 64;
thread_local KnownText known_texts[kKnownTexts];

std::uint32_t text_of(engine::TraceWriter& writer, const char* text) noexcept {
  if (text == nullptr || *text == '\0') return 0;
  const std::size_t bytes = ::strnlen(text, sizeof KnownText::text);
  if (bytes == sizeof KnownText::text) return writer.text(text);
  KnownText& known = known_texts[(reinterpret_cast<std::uintptr_t>(text) >> 3) % kKnownTexts];
  if (known.writer == &writer && known.id != 0 && std::memcmp(known.text, text, bytes + 1) == 0) return known.id;
  known.writer = &writer;
  known.id = writer.text(text);
  std::memcpy(known.text, text, bytes + 1);
  return known.id;
}

}  // namespace

Profiler& Profiler::instance() noexcept {
  static Profiler* const made = new Profiler;  // never destroyed: NCCL's threads call it during exit
  return *made;
}

// Opens the trace at the first call. Null if nothing is to be recorded. The mutex must be held.
engine::TraceWriter* Profiler::begin_tracing(Logger log) {
  if (tried_) return owned_.get();
  tried_ = true;
  engine::Knobs knobs;
  std::string error;
  if (engine::load_knobs(&knobs, &error) == Status::ok) {
    kernels_every_ = knobs.trace_kernels;
    owned_ = engine::open_trace(knobs, &error);
    pid_ = ::getpid();
    writer_.store(owned_.get(), std::memory_order_release);
  }
  if (!error.empty() && log != nullptr) {
    log(kLogWarn, kLogInit, "weft", 0, "PROFILER/weft: %s; there will be no trace", error.c_str());
  }
  return owned_.get();
}

void Profiler::name(Context* context, const CommunicatorFacts& facts) noexcept {
  engine::TraceWriter* const writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || context->named.exchange(true, std::memory_order_acq_rel)) return;
  telemetry::TraceCommunicator record;
  record.head.id = context->record;
  record.head.time_ns = now_ns();
  record.comm_id = facts.comm_id;
  record.name = text_of(*writer, facts.name);
  record.ranks = facts.ranks;
  record.nodes = facts.nodes;
  record.rank = facts.rank;
  writer->begin(record);
}

void Profiler::init(void** context, int* mask, const CommunicatorFacts& facts, Logger log) noexcept {
  *context = nullptr;
  engine::TraceWriter* writer = nullptr;
  try {
    if (mark_parent()) {
      const std::lock_guard lock(mutex_);
      writer = begin_tracing(log);
    }
    if (writer != nullptr) {
      auto made = std::make_unique<Context>();
      made->record = writer->next_standing_id();
      if (facts.ranks > 0) name(made.get(), facts);
      *context = contexts_.add(std::move(made));
    }
  } catch (const std::bad_alloc&) {  // out of memory: this communicator is not traced
  }
  const std::uint64_t wanted = kMask | (kernels_every_ != 0 ? kEventKernelChannel : 0);
  __atomic_store_n(mask, writer == nullptr ? 0 : static_cast<int>(wanted), __ATOMIC_RELAXED);
}

void Profiler::finalize(void* context) noexcept {
  const std::unique_ptr<Context> gone = contexts_.remove(context);
  engine::TraceWriter* const writer = writer_.load(std::memory_order_acquire);
  if (gone == nullptr || writer == nullptr) return;
  telemetry::TraceCommunicatorEnd record;
  record.head.id = gone->record;
  record.head.time_ns = now_ns();
  writer->end(record);
  static_cast<void>(writer->flush(kFlushNs));  // written now, because the process may end
}

void Profiler::start_operation(void* context, const OperationFacts& facts, void** event) noexcept {
  *event = nullptr;
  engine::TraceWriter* const writer = writer_.load(std::memory_order_acquire);
  Context* const of = contexts_.find(context);
  if (writer == nullptr || of == nullptr) return;
  if (!of->named.load(std::memory_order_acquire)) name(of, {facts.comm_hash, facts.comm_name, 0, 0, facts.rank});
  telemetry::TraceOperation record;
  record.head.id = writer->next_id();
  record.head.time_ns = now_ns();
  record.sequence = facts.sequence;
  record.count = facts.count;
  record.tag = facts.tag;
  record.communicator = of->record;
  record.function = text_of(*writer, facts.function);
  record.datatype = text_of(*writer, facts.datatype);
  record.algorithm = text_of(*writer, facts.algorithm);
  record.protocol = text_of(*writer, facts.protocol);
  record.root = facts.root;
  record.channels = facts.channels;
  record.kind = static_cast<std::uint16_t>(facts.kind);
  if (is_call(facts.call)) {
    const auto call = reinterpret_cast<std::uintptr_t>(facts.call);
    record.called_ns = call_time(call, record.head.time_ns);
    record.captured = is_captured_call(call) ? 1 : 0;
  }
  writer->put(record);
  *event = handle_of(record.head.id, wants_kernels());
}

// Whether the times of the next operation's kernels are recorded, as for one operation in kernels_every_. NCCL's mask
// of events stays as it is: NCCL 2.28 hangs if a profiler changes whether it wants kernels while operations are
// enqueued.
bool Profiler::wants_kernels() noexcept {
  if (kernels_every_ == 0) return false;
  return operations_.fetch_add(1, std::memory_order_relaxed) % kernels_every_ == 0;
}

void Profiler::start_call(bool is_captured, void** event) noexcept {
  *event = writer_.load(std::memory_order_acquire) == nullptr ? nullptr : handle_of_call(now_ns(), is_captured);
}

void Profiler::start_channel(void* context, const void* parent, const ProfiledProxyOp& facts, void** event) noexcept {
  *event = nullptr;
  engine::TraceWriter* const writer = writer_.load(std::memory_order_acquire);
  Context* const of = contexts_.find(context);
  if (writer == nullptr || of == nullptr) return;
  OpaqueHandle handle{};
  ProfiledEvent* const made = events_.take(&handle);
  if (made == nullptr) return;
  made->kind = ProfiledEvent::Kind::channel;
  made->record = writer->next_id();
  telemetry::TraceChannel record;
  record.head.id = made->record;
  record.head.time_ns = now_ns();
  // A proxy also works for other processes (PXN): `parent` is then a pointer of the process that enqueued the
  // operation.
  record.operation = facts.pid == pid_ ? operation_of(parent) : 0;
  record.communicator = of->record;
  record.peer = facts.peer;
  record.steps = facts.steps;
  record.chunk_bytes = static_cast<std::uint32_t>(facts.chunk_bytes);
  record.channel = facts.channel;
  record.sends = facts.sends != 0 ? 1 : 0;
  writer->put(record);
  *event = handle.value();
}

void Profiler::start_step(const void* parent, int number, void** event) noexcept {
  *event = nullptr;
  if (writer_.load(std::memory_order_acquire) == nullptr) return;
  const OpaqueHandle of = OpaqueHandle::of(parent);
  ProfiledEvent* const channel = events_.find(of);
  if (channel == nullptr) return;
  if (channel->step == number && events_.find(channel->step_event) != nullptr) {
    *event = channel->step_event.value();
    return;
  }
  OpaqueHandle handle{};
  ProfiledEvent* const made = events_.take(&handle);
  if (made == nullptr) return;
  made->kind = ProfiledEvent::Kind::step;
  made->parent = of;
  channel->step = number;
  channel->step_event = handle;
  *event = handle.value();
}

void Profiler::start_kernel(const void* parent, std::uint16_t channel, std::uint64_t gpu_ns, void** event) noexcept {
  *event = nullptr;
  if (writer_.load(std::memory_order_acquire) == nullptr || !has_kernels(parent)) return;
  OpaqueHandle handle{};
  ProfiledEvent* const made = events_.take(&handle);
  if (made == nullptr) return;
  made->kind = ProfiledEvent::Kind::kernel;
  made->operation = operation_of(parent);
  made->channel = channel;
  made->bytes.store(gpu_ns, std::memory_order_relaxed);
  *event = handle.value();
}

void Profiler::start_net(const void* parent, const ProfiledNetEvent& event) noexcept {
  if (event.id != kNetPluginId || event.data == nullptr) return;
  const ProfiledEvent* const step = events_.find(OpaqueHandle::of(parent));
  if (step == nullptr) return;
  const ProfiledEvent* const channel = events_.find(step->parent);
  if (channel != nullptr) static_cast<NetMessage*>(event.data)->channel = channel->record;
}

// Adds the time since the step's last change of state to the waiting times of its channel.
void Profiler::add_wait(ProfiledEvent* step, std::int64_t now) noexcept {
  ProfiledEvent* const channel = events_.find(step->parent);
  if (channel == nullptr) return;
  const auto waited_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(now - step->since_ns, 0));
  switch (step->state) {
    case kStateSendGpuWait:
    case kStateReceiveGpuWait:
    case kStateReceiveFlushWait:
      channel->gpu_wait_ns.fetch_add(waited_ns, std::memory_order_relaxed);
      return;
    case kStateSendPeerWait:
      channel->peer_wait_ns.fetch_add(waited_ns, std::memory_order_relaxed);
      return;
    case kStateSendWait:
    case kStateReceiveWait:
      channel->network_wait_ns.fetch_add(waited_ns, std::memory_order_relaxed);
      return;
    default:
      return;
  }
}

void Profiler::record_state(const void* event, int state, std::uint64_t bytes) noexcept {
  const OpaqueHandle handle = OpaqueHandle::of(event);
  ProfiledEvent* const step = events_.find(handle);
  if (step == nullptr || step->kind != ProfiledEvent::Kind::step) return;
  const std::int64_t now = now_ns();
  add_wait(step, now);
  step->state = state;
  step->since_ns = now;
  // The size of a send is known when it enters the network, that of a receive when it has arrived.
  if (state == kStateSendWait || state == kStateReceiveFlushWait) {
    step->bytes.store(bytes, std::memory_order_relaxed);
  }
}

void Profiler::record_transferred(const void* event, std::uint64_t bytes) noexcept {
  ProfiledEvent* const channel = events_.find(OpaqueHandle::of(event));
  if (channel == nullptr || channel->kind != ProfiledEvent::Kind::channel) return;
  // `bytes` is the total so far. NCCL may report it from several threads, so the larger value is kept.
  std::uint64_t known = channel->bytes.load(std::memory_order_relaxed);
  while (known < bytes && !channel->bytes.compare_exchange_weak(known, bytes, std::memory_order_relaxed)) {
  }
}

void Profiler::record_kernel_stop(const void* event, std::uint64_t gpu_ns) noexcept {
  ProfiledEvent* const kernel = events_.find(OpaqueHandle::of(event));
  if (kernel == nullptr || kernel->kind != ProfiledEvent::Kind::kernel) return;
  kernel->gpu_wait_ns.store(gpu_ns, std::memory_order_relaxed);
}

void Profiler::stop(const void* event) noexcept {
  engine::TraceWriter* const writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || event == nullptr) return;
  if (const std::uint32_t operation = operation_of(event); operation != 0) {
    telemetry::TraceOperationEnd record;
    record.head.id = operation;
    record.head.time_ns = now_ns();
    writer->put(record);
    return;
  }
  const OpaqueHandle handle = OpaqueHandle::of(event);
  ProfiledEvent* const ended = events_.find(handle);
  if (ended == nullptr) return;
  const std::int64_t now = now_ns();
  if (ended->kind == ProfiledEvent::Kind::step) {
    add_wait(ended, now);
    if (ProfiledEvent* const channel = events_.find(ended->parent)) {
      const std::uint64_t bytes = ended->bytes.load(std::memory_order_relaxed);
      channel->bytes.fetch_add(bytes, std::memory_order_relaxed);
      channel->steps.fetch_add(1, std::memory_order_relaxed);
      channel->messages.fetch_add(bytes != 0 ? 1 : 0, std::memory_order_relaxed);
    }
  } else if (ended->kind == ProfiledEvent::Kind::channel) {
    telemetry::TraceChannelEnd record;
    record.head.id = ended->record;
    record.head.time_ns = now;
    record.bytes = ended->bytes.load(std::memory_order_relaxed);
    record.gpu_wait_ns = ended->gpu_wait_ns.load(std::memory_order_relaxed);
    record.peer_wait_ns = ended->peer_wait_ns.load(std::memory_order_relaxed);
    record.network_wait_ns = ended->network_wait_ns.load(std::memory_order_relaxed);
    record.steps = ended->steps.load(std::memory_order_relaxed);
    record.messages = ended->messages.load(std::memory_order_relaxed);
    writer->put(record);
  } else {
    telemetry::TraceKernel record;
    record.head.id = writer->next_id();
    record.head.time_ns = now;
    record.gpu_start_ns = ended->bytes.load(std::memory_order_relaxed);
    record.gpu_stop_ns = ended->gpu_wait_ns.load(std::memory_order_relaxed);
    record.operation = ended->operation;
    record.channel = ended->channel;
    writer->put(record);
  }
  events_.give_back(handle);
}

}  // namespace weft::nccl
