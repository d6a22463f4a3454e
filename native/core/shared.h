// What all parts of one protocol stack share: configuration, memory pools, random numbers, counters and the event
// queue.
#pragma once

#include <array>
#include <cstring>

#include "native/core/host_time.h"
#include "native/core/random.h"
#include "native/core/receive_window.h"
#include "native/core/send_ledger.h"
#include "native/core/slab_pool.h"
#include "native/core/trace.h"
#include "native/core/types.h"

namespace weft::core {

// The last failure of a policy: its name and the hook that failed. The name is copied because the policy's library may
// be unloaded.
struct PolicyFailure {
  char name[sizeof(policy::Descriptor::name)] = "";
  std::size_t hook = 0;
};

struct Shared {
  // The pools' limits on blocks keep an engine's memory below 64 MB. Most of it is for the records of sent segments: a
  // send slab holds 32 of them.
  explicit Shared(const StackConfig& stack_config)
      : config(stack_config),
        random(stack_config.seed),
        send_slabs(sizeof(SendLedger::Slab), 32 * 1024),
        bitmaps(ReceiveWindow::kBitmapBytes, 4096),
        eager_blocks(stack_config.eager_bytes == 0 ? 1 : stack_config.eager_bytes, stack_config.eager_blocks, false),
        counters(stack_config.counters == nullptr ? &own_counters : stack_config.counters) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  StackConfig config;
  Random random;
  SlabPool send_slabs;
  SlabPool bitmaps;
  SlabPool eager_blocks;
  EventQueue events;
  EngineCells own_counters;  // the engine's counters if the configuration supplies none
  EngineCells* counters;
  Trace trace;  // the sinks that observe this stack
  i64 last_sent_ns = 0;
  HostTime host;
  std::array<PolicyFailure, 4> failures;  // indexed by policy::Family minus 1

  // Returns a send time that no other segment has, so that send times order all segments, even within a train. (RFC
  // 8985 breaks ties by sequence number.) It is ahead of the clock by at most one nanosecond per segment.
  i64 unique_ns(i64 now_ns) noexcept {
    last_sent_ns = now_ns > last_sent_ns ? now_ns : last_sent_ns + 1;
    return last_sent_ns;
  }

  // Whether a flow that holds `held_blocks` eager blocks may take another. A flow may hold as many as are free, as in a
  // switch with a shared buffer (Choudhury and Hahne, "Dynamic queue length thresholds", 1998), so that connections
  // whose application does not read cannot exhaust the pool. The last eighth is reserved for flows that hold none.
  bool may_hold_eager(u64 held_blocks) const noexcept {
    const u64 left = eager_blocks.blocks_max() - eager_blocks.blocks_in_use();
    return left != 0 && (held_blocks == 0 || held_blocks + eager_blocks.blocks_max() / 8 < left);
  }

  // Reports an event to the owner and to sinks.
  void report(const Event& event) {
    trace.emit(event);
    events.push(event);
  }

  const PolicyFailure& failure_of(policy::Family family) const noexcept {
    return failures[static_cast<std::size_t>(family) - 1];
  }
  // Stores a policy's failure and reports the event policy_failed. The caller then replaces the policy by `fixed`.
  void on_policy_failed(const policy::Descriptor& failed, std::size_t hook, u32 flow, u32 peer) {
    ++counters->events_policy_failed;
    PolicyFailure& failure = failures[failed.family - 1];
    std::memcpy(failure.name, failed.name, sizeof failure.name);
    failure.hook = hook;
    Event event{};
    event.kind = Event::Kind::policy_failed;
    event.flow = flow;
    event.peer = peer;
    event.value = failed.family;
    report(event);
  }
};

}  // namespace weft::core
