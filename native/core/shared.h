// What every machine of one stack shares: configuration, storage, chance, counters and the event queue. The stack owns
// it and hands it to the machines.
#pragma once

#include <array>
#include <cstring>

#include "native/core/decision_tap.h"
#include "native/core/events.h"
#include "native/core/host_time.h"
#include "native/core/random.h"
#include "native/core/receive_window.h"
#include "native/core/send_ledger.h"
#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::core {

// The newest failure of a family: which policy, in which hook. A copy: its library may be gone when somebody asks.
struct PolicyFailure {
  char name[sizeof(policy::Descriptor::name)] = "";
  std::size_t hook = 0;
};

struct Shared {
  // Caps: 64 MB an engine (budget), most of it send slabs (32 segments each).
  explicit Shared(const StackConfig& stack_config)
      : config(stack_config),
        random(stack_config.seed),
        send_slabs(sizeof(SendLedger::Slab), 32 * 1024),
        bitmaps(ReceiveWindow::kBitmapBytes, 4096),
        eager_blocks(stack_config.eager_bytes == 0 ? 1 : stack_config.eager_bytes, stack_config.eager_blocks),
        counters(stack_config.counters == nullptr ? &own_counters : stack_config.counters) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  StackConfig config;
  Random random;
  SlabPool send_slabs;
  SlabPool bitmaps;
  SlabPool eager_blocks;
  EventQueue events;
  EngineCells own_counters;  // where the owner gave none
  EngineCells* counters;
  DecisionTap* tap = nullptr;  // who records decisions; null: nobody
  i64 last_sent_ns = 0;
  HostTime host;
  std::array<PolicyFailure, 4> failures;  // by family

  // A send time no other segment has, so that "sent before" orders all of them, also within a train (RFC 8985 breaks
  // ties by sequence number for the same reason). It runs ahead of the clock by a nanosecond a segment at most.
  i64 unique_ns(i64 now_ns) noexcept {
    last_sent_ns = now_ns > last_sent_ns ? now_ns : last_sent_ns + 1;
    return last_sent_ns;
  }

  // Whether a flow that holds so many eager blocks may take another. A flow's share is what is left for all, as in a
  // switch that shares its buffer (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): it shrinks as the
  // pool fills, so that no number of unread connections can take everything. The last eighth is for flows that hold
  // none.
  bool may_hold_eager(u64 held_blocks) const noexcept {
    const u64 left = eager_blocks.blocks_max() - eager_blocks.blocks_in_use();
    return left != 0 && (held_blocks == 0 || held_blocks + eager_blocks.blocks_max() / 8 < left);
  }

  const PolicyFailure& failure_of(policy::Family family) const noexcept {
    return failures[static_cast<std::size_t>(family) - 1];
  }
  // Before `fixed` takes its place.
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
    events.push(event);
  }
};

}  // namespace weft::core
