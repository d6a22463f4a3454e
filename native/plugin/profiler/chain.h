// Passes NCCL's profiler calls to weft's profiler and then to a chained one. NCCL knows one handle for each context and
// event, and one mask; the handles are translated, and the masks joined. The chained profiler gets the events of its
// own mask alone, with its own handles as their parents.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "native/plugin/fork_check.h"
#include "native/plugin/handle_table.h"
#include "native/plugin/profiler/abi_common.h"
#include "native/plugin/profiler/chain_library.h"
#include "native/plugin/profiler/event_pairs.h"

namespace weft::nccl {

// Returns the types of events that NCCL reports for a mask: those in the mask and the parents of these.
constexpr std::uint64_t with_parents(std::uint64_t mask) noexcept {
  if ((mask & kEventNetPlugin) != 0) mask |= kEventProxyStep;
  if ((mask & kEventProxyStep) != 0) mask |= kEventProxyOp;
  if ((mask & (kEventProxyOp | kEventKernelChannel)) != 0) mask |= kEventCollective | kEventPointToPoint;
  if ((mask & kEventCollective) != 0) mask |= kEventCollectiveApi;
  if ((mask & kEventPointToPoint) != 0) mask |= kEventPointToPointApi;
  if ((mask & (kEventCollective | kEventPointToPoint)) != 0) mask |= kEventGroup;
  if ((mask & (kEventCollectiveApi | kEventPointToPointApi | kEventKernelLaunch)) != 0) mask |= kEventGroupApi;
  return mask;
}

// How long NCCL may name an event as the parent of others: for the types in kUntilEnd, until it has stopped the event.
template <typename Descriptor>
EventPairs::Lifetime lifetime_of(const Descriptor& event) noexcept {
  constexpr std::uint64_t kUntilEnd =
      kEventProxyOp | kEventProxyStep | kEventProxyControl | kEventKernelChannel | kEventNetPlugin;
  if ((event.type & kUntilEnd) != 0) return EventPairs::Lifetime::until_end;
  bool is_captured = false;
  if constexpr (requires { event.group_api; }) {
    if (event.type == kEventGroupApi) is_captured = event.group_api.is_captured;
    if (event.type == kEventCollectiveApi) is_captured = event.collective_api.is_captured;
    if (event.type == kEventPointToPointApi) is_captured = event.point_to_point_api.is_captured;
  }
  return is_captured ? EventPairs::Lifetime::replays : EventPairs::Lifetime::past_end;
}

// The calls of one version of NCCL's profiler interface, passed on to weft's profiler (its table is `ours`) and to the
// chained profiler.
template <int version, typename Table, typename Descriptor, typename Arguments, const Table& ours>
class Chain {
 public:
  static Result init_v1(void** context, int* mask) noexcept {
    return begin(context, mask, nullptr,
                 [](const Table& table, void** made, int* chosen) { return table.init(made, chosen); });
  }
  static Result init_v4(void** context, int* mask, const char* name, std::uint64_t comm_id, int nodes, int ranks,
                        int rank, Logger log) noexcept {
    return begin(context, mask, log, [&](const Table& table, void** made, int* chosen) {
      return table.init(made, chosen, name, comm_id, nodes, ranks, rank, log);
    });
  }
  static Result init_v5(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes, int ranks,
                        int rank, Logger log) noexcept {
    return begin(context, mask, log, [&](const Table& table, void** made, int* chosen) {
      return table.init(made, comm_id, chosen, name, nodes, ranks, rank, log);
    });
  }

  static Result start_event(void* context, void** event, Descriptor* from) noexcept {
    const Table* const chained = table();
    if (chained == nullptr || in_forked_child()) return ours.start_event(context, event, from);
    *event = nullptr;
    const Context* const of = state().contexts.find(context);
    if (of == nullptr) return Result::success;
    join_masks(*of);
    const std::uint64_t type = from->type;
    EventPair* const above = type == kEventProxyStep ? state().pairs.running(from->parent) : nullptr;
    if (above != nullptr && above->step == from->proxy_step) {
      if (EventPair* const again = state().pairs.running(above->step_event)) {
        start_pair(*chained, *of, from, again);
        *event = above->step_event;
        return Result::success;
      }
    }
    EventPair made;
    made.context = context;
    start_pair(*chained, *of, from, &made);
    *event = state().pairs.add(made, lifetime_of(*from));
    if (*event == nullptr) stop_pair(*chained, made);  // NCCL got no handle, so it will not stop the event
    if (above != nullptr) above->step = from->proxy_step, above->step_event = *event;
    return Result::success;
  }

  static Result stop_event(void* event) noexcept {
    const Table* const chained = table();
    if (chained == nullptr || in_forked_child()) return ours.stop_event(event);
    stop_pair(*chained, state().pairs.end(event));
    return Result::success;
  }

  static Result record_event_state(void* event, int value, Arguments* arguments) noexcept {
    const Table* const chained = table();
    if (chained == nullptr || in_forked_child()) return ours.record_event_state(event, value, arguments);
    const EventPair pair = state().pairs.find(event);
    if (pair.own != nullptr) static_cast<void>(ours.record_event_state(pair.own, value, arguments));
    if (reaches_chained(pair)) {
      const ChainCall marked;
      static_cast<void>(chained->record_event_state(pair.chained, value, arguments));
    }
    return Result::success;
  }

  static Result finalize(void* context) noexcept {
    const Table* const chained = table();
    if (chained == nullptr || in_forked_child()) return ours.finalize(context);
    const std::unique_ptr<Context> gone = state().contexts.remove(context);
    if (gone == nullptr) return Result::success;
    static_cast<void>(ours.finalize(gone->own));
    if (gone->initialised) {
      const ChainCall marked;
      static_cast<void>(chained->finalize(gone->chained));
    }
    tell_lost(gone->log);
    return Result::success;
  }

 private:
  struct Context {
    void *own = nullptr, *chained = nullptr;
    int* mask = nullptr;  // NCCL's mask of event types, which all communicators share
    // The mask that the chained profiler writes, at any time. If weft's profiler wants no events, this is NCCL's own
    // mask: a separate mask is merged into NCCL's only during NCCL's calls, and NCCL makes none while its mask is 0.
    int* chained_mask = nullptr;
    Logger log = nullptr;
    bool initialised = false;  // false: the chained profiler refused the communicator, and is not called for it
  };
  struct State {
    HandleTable<Context> contexts{HandleKind::chained_context};
    EventPairs pairs;
    std::atomic<std::uint64_t> lost_told{0};
    const int pid = ::getpid();
    int own_mask = 0;      // event types that weft's profiler wants; each init sets them to the same value
    int chained_mask = 0;  // event types that the chained profiler wants; unused if weft's profiler wants none
  };
  // Never destroyed, because NCCL's threads may call until the process ends. Only made if a profiler is chained.
  static State& state() noexcept {
    static auto* const made = new State;
    return *made;
  }
  static const Table* table() noexcept { return static_cast<const Table*>(ChainLibrary::instance().table(version)); }

  template <typename Call>
  static Result begin(void** context, int* mask, Logger log, Call&& call) noexcept {
    *context = nullptr;
    if (in_forked_child()) {
      __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
      return Result::success;
    }
    const auto* const chained = static_cast<const Table*>(ChainLibrary::instance().load(version, log));
    if (chained == nullptr) return call(ours, context, mask);
    static_cast<void>(call(ours, context, &state().own_mask));
    try {
      auto made = std::make_unique<Context>();
      made->own = *context;
      *context = nullptr;
      made->log = log;
      made->mask = mask;
      made->chained_mask = mask_of(state().own_mask) == 0 ? mask : &state().chained_mask;
      {
        const ChainCall marked;
        made->initialised = call(*chained, &made->chained, made->chained_mask) == Result::success;
      }
      if (!made->initialised && log != nullptr) {
        log(kLogWarn, kLogInit, "weft", 0,
            "PROFILER/weft: the profiler that WEFT_PROFILER_CHAIN names cannot profile this communicator: its init "
            "failed");
      }
      join_masks(*made);  // only after both inits, so that communicators in use keep their event types meanwhile
      *context = state().contexts.add(std::move(made));
    } catch (const std::bad_alloc&) {  // out of memory: the communicator is not profiled
      *context = nullptr;
    }
    return Result::success;
  }

  // Logs how many events were lost since the last call.
  static void tell_lost(Logger log) noexcept {
    if (log == nullptr) return;
    const std::uint64_t lost = state().pairs.lost();
    const std::uint64_t told = state().lost_told.exchange(lost, std::memory_order_relaxed);
    if (lost <= told) return;
    log(kLogWarn, kLogInit, "weft", 0,
        "PROFILER/weft: there were too many events to track for WEFT_PROFILER_CHAIN; events that were not recorded, or "
        "without their parent: %llu",
        static_cast<unsigned long long>(lost - told));
  }

  // Sets NCCL's mask to the types of events that either profiler wants.
  static void join_masks(const Context& of) noexcept {
    if (of.chained_mask == of.mask) return;
    const std::uint64_t joined = mask_of(state().own_mask) | mask_of(*of.chained_mask);
    if (mask_of(*of.mask) != joined) __atomic_store_n(of.mask, static_cast<int>(joined), __ATOMIC_RELAXED);
  }

  // Starts an event in both profilers, each with its own handle of the parent, and sets the handles of `pair`.
  static void start_pair(const Table& chained, const Context& of, const Descriptor* from, EventPair* pair) noexcept {
    const std::uint64_t type = from->type;
    State& all = state();
    // The parent of an operation of another process (PXN) is a pointer of that process, which is passed on unchanged.
    EventPair parent{from->parent, from->parent};
    const bool foreign = type == kEventProxyOp && from->proxy_op.pid != all.pid;
    if (!foreign) parent = all.pairs.find(from->parent);
    if (of.own != nullptr && (with_parents(mask_of(all.own_mask)) & type) != 0) {
      Descriptor copy = *from;
      copy.parent = parent.own;
      static_cast<void>(ours.start_event(of.own, &pair->own, &copy));
    }
    if (!of.initialised || (with_parents(mask_of(*of.chained_mask)) & type) == 0) return;
    Descriptor copy = *from;
    copy.parent = parent.chained;
    if constexpr (requires { copy.collective.parent_group; }) {
      if (type == kEventCollective) copy.collective.parent_group = group_of(copy.collective.parent_group);
      if (type == kEventPointToPoint) copy.point_to_point.parent_group = group_of(copy.point_to_point.parent_group);
    }
    void* event = nullptr;
    const ChainCall marked;
    if (chained.start_event(of.chained, &event, &copy) == Result::success) pair->chained = event;
  }
  static void stop_pair(const Table& chained, const EventPair& pair) noexcept {
    if (pair.own != nullptr) static_cast<void>(ours.stop_event(pair.own));
    if (!reaches_chained(pair)) return;
    const ChainCall marked;
    static_cast<void>(chained.stop_event(pair.chained));
  }
  static void* group_of(const void* event) noexcept { return state().pairs.find(event).chained; }
  static std::uint64_t mask_of(const int& mask) noexcept {
    return static_cast<std::uint32_t>(__atomic_load_n(&mask, __ATOMIC_RELAXED));
  }
  // Whether the chained profiler knows the event and has not finalized its communicator.
  static bool reaches_chained(const EventPair& pair) noexcept {
    const Context* const of = pair.chained == nullptr ? nullptr : state().contexts.find(pair.context);
    return of != nullptr && of->initialised;
  }
};

}  // namespace weft::nccl
