// The interface through which logs, recordings and traces observe the core's events, the decisions of policies and the
// state of peer processes. An event without a subscriber costs the test of one bit.
#pragma once

#include <array>
#include <cstddef>

#include "native/core/events.h"
#include "native/core/types.h"

namespace weft::core {

// One call of a policy's hook. The pointers are valid only during TraceSink::on_decision().
struct Decision {
  policy::Family family = policy::Family::window;
  std::size_t hook = 0;
  u32 owner = 0;  // index of the flow, or of the peer if the family is path
  const policy::Descriptor* descriptor = nullptr;
  const void* params = nullptr;
  const void* event = nullptr;
  const void* result = nullptr;      // the policy's answer, before the core corrects it
  const std::byte* paths = nullptr;  // path policies only: the path records, each of which begins with a PathHead
  std::size_t path_count = 0;        // path and loss policies only: number of paths
  bool ok = true;                    // false: the hook failed and `fixed` replaces the policy
};

// What the control plane has found out about another process. The texts are valid only during TraceSink::on_process().
struct ProcessEvent {
  enum class Kind : u8 {
    connected,     // the first connection to the process was opened
    reconnected,   // a lost control socket was replaced; since_ns: when it was lost
    stalled,       // the process does not run, but its host answers; event repeats; since_ns: when it was last heard
    resumed,       // a stalled process runs again; since_ns: when the stall began
    disconnected,  // status ok: one of the processes closed the session or ended; otherwise why the session failed
  };
  Kind kind = Kind::connected;
  Status status = Status::ok;
  const char* name = "";   // address and port of the process
  const char* cause = "";  // why the event happened, as text for users
  i64 since_ns = 0;
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // on_event() and on_decision() are called on the stack's thread, between two segments: they must not allocate, lock
  // or wait.
  virtual void on_event(i64 now_ns, const Event& event) noexcept {
    static_cast<void>(now_ns);
    static_cast<void>(event);
  }
  virtual void on_decision(const Decision& decision) noexcept { static_cast<void>(decision); }
  // on_process() is called by the control plane's loop.
  virtual void on_process(i64 now_ns, const ProcessEvent& event) noexcept {
    static_cast<void>(now_ns);
    static_cast<void>(event);
  }
};

// A bit set of what a sink subscribes to: one bit per kind of event, one for all process events, one for all decisions.
using Traced = u32;
constexpr Traced traced(Event::Kind kind) noexcept { return Traced{1} << static_cast<unsigned>(kind); }
template <typename... More>
constexpr Traced traced(Event::Kind kind, More... more) noexcept {
  return traced(kind) | traced(more...);
}
inline constexpr Traced kTraceEvents = (Traced{1} << Event::kKinds) - 1;
inline constexpr Traced kTraceProcesses = Traced{1} << 30;
inline constexpr Traced kTraceDecisions = Traced{1} << 31;
static_assert(Event::kKinds < 30);

// The sinks of one stack or of the control plane. Sinks may be added and removed only on the thread that emits events.
class Trace {
 public:
  static constexpr std::size_t kSinksMax = 4;

  i64 now_ns = 0;  // time of the current call into the core

  // Subscribes a sink to `kinds`, which replace its previous kinds. False: there are kSinksMax sinks already.
  bool subscribe(TraceSink* sink, Traced kinds) noexcept;
  void unsubscribe(const TraceSink* sink) noexcept;

  bool wants(Event::Kind kind) const noexcept { return (wanted_ & traced(kind)) != 0; }
  bool wants_decisions() const noexcept { return (wanted_ & kTraceDecisions) != 0; }
  void emit(const Event& event) const noexcept {
    if (wants(event.kind)) tell(event);
  }
  void emit(const Decision& decision) const noexcept;
  void emit(i64 at_ns, const ProcessEvent& event) const noexcept;

 private:
  struct Subscription {
    TraceSink* sink = nullptr;
    Traced kinds = 0;
  };
  void tell(const Event& event) const noexcept;
  void sum_up() noexcept;

  std::array<Subscription, kSinksMax> sinks_{};
  Traced wanted_ = 0;  // all bits that any sink has subscribed to
};

}  // namespace weft::core
