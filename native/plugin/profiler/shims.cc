// Adapts the calls of the profiler to every version of NCCL's interface. Every call returns success: after an error
// NCCL would stop using the profiler, and a trace that lacks an event is better than no trace.
#include <algorithm>
#include <array>

#include "native/plugin/fork_check.h"
#include "native/plugin/plugin.h"
#include "native/plugin/profiler/abi_v1.h"
#include "native/plugin/profiler/abi_v2.h"
#include "native/plugin/profiler/abi_v3.h"
#include "native/plugin/profiler/abi_v4.h"
#include "native/plugin/profiler/abi_v5.h"
#include "native/plugin/profiler/abi_v6.h"
#include "native/plugin/profiler/abi_v7.h"
#include "native/plugin/profiler/chain.h"
#include "native/plugin/profiler/profiler.h"

namespace weft::nccl {
namespace {

// Interface version 1 passes numbers instead of texts. The texts are those that later versions pass.
constexpr std::array<const char*, 8> kFunctions = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                                   "AllReduce", "SendRecv", "Send",      "Recv"};
constexpr std::array<const char*, 10> kDatatypes = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                                    "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                                    "ncclFloat64", "ncclBfloat16"};
constexpr std::array<const char*, 7> kAlgorithms = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                                    "NVLS_TREE", "PAT"};
constexpr std::array<const char*, 3> kProtocols = {"LL", "LL128", "SIMPLE"};

template <std::size_t count>
const char* text_of(const std::array<const char*, count>& texts, std::uint8_t number) noexcept {
  return number < count ? texts[number] : nullptr;
}
const char* text_of(const std::array<const char*, 8>&, const char* text) noexcept { return text; }
const char* text_of(const std::array<const char*, 10>&, const char* text) noexcept { return text; }
const char* text_of(const std::array<const char*, 7>&, const char* text) noexcept { return text; }
const char* text_of(const std::array<const char*, 3>&, const char* text) noexcept { return text; }

template <typename Body>
Result quietly(Body&& body) noexcept {
  if (!in_forked_child()) body(Profiler::instance());
  return Result::success;
}

template <typename Collective>
OperationFacts collective_of(const Collective& from) noexcept {
  OperationFacts facts;
  facts.kind = OperationFacts::Kind::collective;
  facts.sequence = from.sequence;
  facts.count = from.count;
  facts.function = text_of(kFunctions, from.function);
  facts.datatype = text_of(kDatatypes, from.datatype);
  facts.algorithm = text_of(kAlgorithms, from.algorithm);
  facts.protocol = text_of(kProtocols, from.protocol);
  facts.root = from.root;
  if constexpr (requires { from.channels; }) {
    facts.channels = from.channels;
  } else {
    facts.channels = from.channels_max;
  }
  if constexpr (requires { from.tag; }) facts.tag = from.tag;
  return facts;
}

template <typename PointToPoint>
OperationFacts point_to_point_of(const PointToPoint& from) noexcept {
  OperationFacts facts;
  facts.kind = OperationFacts::Kind::point_to_point;
  facts.count = from.count;
  facts.function = text_of(kFunctions, from.function);
  facts.datatype = text_of(kDatatypes, from.datatype);
  facts.root = from.peer;
  if constexpr (requires { from.channels; }) facts.channels = from.channels;
  if constexpr (requires { from.tag; }) facts.tag = from.tag;
  return facts;
}

template <typename CopyCollective>
OperationFacts copies_of(const CopyCollective& from) noexcept {
  OperationFacts facts;
  facts.kind = OperationFacts::Kind::copy_engines;
  facts.sequence = from.sequence;
  facts.count = from.count;
  facts.function = from.function;
  facts.datatype = from.datatype;
  facts.root = from.root;
  if constexpr (requires { from.tag; }) facts.tag = from.tag;
  return facts;
}

// Interface versions 1 to 3 name the communicator in each operation.
template <typename Operation>
void add_communicator(const Operation& from, int rank, OperationFacts* facts) noexcept {
  facts->rank = rank;
  if constexpr (requires { from.comm_hash; }) {
    facts->comm_hash = from.comm_hash;
    facts->comm_name = from.name;
  }
}

template <typename Descriptor>
Result start_event(void* context, void** event, Descriptor* from) noexcept {
  *event = nullptr;
  return quietly([&](Profiler& profiler) {
    OperationFacts facts;
    switch (std::uint64_t{from->type}) {
      case kEventCollective:
        facts = collective_of(from->collective);
        facts.call = from->parent;
        add_communicator(from->collective, from->rank, &facts);
        return profiler.start_operation(context, facts, event);
      case kEventPointToPoint:
        facts = point_to_point_of(from->point_to_point);
        facts.call = from->parent;
        add_communicator(from->point_to_point, from->rank, &facts);
        return profiler.start_operation(context, facts, event);
      case kEventProxyOp:
        return profiler.start_channel(context, from->parent, from->proxy_op, event);
      case kEventProxyStep:
        return profiler.start_step(from->parent, from->proxy_step, event);
      default:
        break;
    }
    if constexpr (requires { from->net; }) {
      if (from->type == kEventNetPlugin) return profiler.start_net(from->parent, from->net);
    }
    if constexpr (requires { from->kernel; }) {
      if (from->type == kEventKernelChannel) {
        return profiler.start_kernel(from->parent, from->kernel.channel, from->kernel.timer_ns, event);
      }
    }
    if constexpr (requires { from->collective_api; }) {
      if (from->type == kEventCollectiveApi) return profiler.start_call(from->collective_api.is_captured, event);
      if (from->type == kEventPointToPointApi) return profiler.start_call(from->point_to_point_api.is_captured, event);
    }
    if constexpr (requires { from->copy_collective; }) {
      if (from->type == kEventCopyCollective) {
        facts = copies_of(from->copy_collective);
        facts.call = from->parent;
        facts.rank = from->rank;
        return profiler.start_operation(context, facts, event);
      }
    }
  });
}

Result stop_event(void* event) noexcept {
  return quietly([&](Profiler& profiler) { profiler.stop(event); });
}

template <typename Arguments>
Result record_state(void* event, int state, Arguments* arguments) noexcept {
  return quietly([&](Profiler& profiler) {
    if constexpr (requires { arguments->proxy_op; }) {
      if (state == kStateOpSendTransmitted || state == kStateOpReceived) {
        if (arguments != nullptr) profiler.record_transferred(event, arguments->proxy_op.transferred_bytes);
        return;
      }
      profiler.record_state(event, state, 0);
    } else if (state == kStateKernelChannelStop) {
      if (arguments != nullptr) profiler.record_kernel_stop(event, arguments->kernel_timer_ns);
    } else {
      profiler.record_state(event, state, arguments == nullptr ? 0 : arguments->transferred_bytes);
    }
  });
}

Result init_v1(void** context, int* mask) noexcept {
  *context = nullptr;
  return quietly([&](Profiler& profiler) { profiler.init(context, mask, {}, nullptr); });
}

Result init_v5(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes, int ranks, int rank,
               Logger log) noexcept {
  *context = nullptr;
  return quietly([&](Profiler& profiler) { profiler.init(context, mask, {comm_id, name, nodes, ranks, rank}, log); });
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t comm_id, int nodes, int ranks, int rank,
               Logger log) noexcept {
  return init_v5(context, comm_id, mask, name, nodes, ranks, rank, log);
}

Result finalize_v1(void* context) noexcept {
  return quietly([&](Profiler& profiler) { profiler.finalize(context); });
}

}  // namespace
}  // namespace weft::nccl

// Each exported table passes the calls to weft's own table and to the chained profiler.
#define WEFT_PROFILER(version, init)                                                                              \
  namespace weft::nccl::profiler_v##version {                                                                     \
    namespace {                                                                                                   \
    constinit const Profiler own = {                                                                              \
        kName, nccl::init, start_event<Descriptor>, nccl::stop_event, record_state<StateArguments>, finalize_v1}; \
    using Joined = Chain<version, Profiler, Descriptor, StateArguments, own>;                                     \
    }                                                                                                             \
  }                                                                                                               \
  extern "C" {                                                                                                    \
  __attribute__((visibility("default"),                                                                           \
                 used)) constinit weft::nccl::profiler_v##version::Profiler ncclProfiler_v##version = {           \
      weft::nccl::kName,                                                                                          \
      weft::nccl::profiler_v##version::Joined::init,                                                              \
      weft::nccl::profiler_v##version::Joined::start_event,                                                       \
      weft::nccl::profiler_v##version::Joined::stop_event,                                                        \
      weft::nccl::profiler_v##version::Joined::record_event_state,                                                \
      weft::nccl::profiler_v##version::Joined::finalize};                                                         \
  }
WEFT_PROFILER(1, init_v1)
WEFT_PROFILER(2, init_v1)
WEFT_PROFILER(3, init_v1)
WEFT_PROFILER(4, init_v4)
WEFT_PROFILER(5, init_v5)
WEFT_PROFILER(6, init_v5)
WEFT_PROFILER(7, init_v5)
