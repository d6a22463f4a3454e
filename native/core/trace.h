// The one interface through which logs, recordings and traces observe the core: its events, the decisions of policies,
// and what the control plane learns of peer processes. Without a subscriber an event costs one test of a bit.
#pragma once

#include <array>
#include <cstddef>

#include "native/core/events.h"
#include "native/core/types.h"

namespace weft::core {

// One call of a policy's hook. The pointers are valid only during TraceSink::on_decision.
struct Decision {
  policy::Family family = policy::Family::window;
  std::size_t hook = 0;
  u32 owner = 0;  // the flow; path family: the peer
  const policy::Descriptor* descriptor = nullptr;
  const void* params = nullptr;
  const void* event = nullptr;
  const void* result = nullptr;      // as the policy left it, before the core's corrections
  const std::byte* paths = nullptr;  // path family: its records, each starting with the PathHead it was given
  std::size_t path_count = 0;        // path and loss families: number of paths
  bool ok = true;                    // false: the hook failed, and `fixed` replaces the policy
};

// What the control plane learns of another process. The texts are valid only during TraceSink::on_process.
struct ProcessEvent {
  enum class Kind : u8 {
    connected,     // the first connection with the process was opened
    reconnected,   // the control socket was lost and is set up again; since_ns: when it was lost
    stalled,       // its host answers and the process does not run; since_ns: its last sign of life. Repeated
    resumed,       // it runs again; since_ns: when the stall began
    disconnected,  // status ok: it closed. Otherwise why it is considered dead
  };
  Kind kind = Kind::connected;
  Status status = Status::ok;
  const char* name = "";   // its address and port
  const char* cause = "";  // in words, for people
  i64 since_ns = 0;
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Called on the thread that runs the stack, between two segments: these two must not allocate per call, lock or wait.
  virtual void on_event(i64 now_ns, const Event& event) noexcept {
    static_cast<void>(now_ns);
    static_cast<void>(event);
  }
  virtual void on_decision(const Decision& decision) noexcept { static_cast<void>(decision); }
  // Called on the control plane's thread.
  virtual void on_process(i64 now_ns, const ProcessEvent& event) noexcept {
    static_cast<void>(now_ns);
    static_cast<void>(event);
  }
};

// A bit set of what to trace: one bit for each kind of event, one for all process events, one for all decisions.
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

// The sinks of one stack, or of the control plane. Changed only on the thread that emits.
class Trace {
 public:
  static constexpr std::size_t kSinksMax = 4;

  i64 now_ns = 0;  // time of the call into the core that is in progress

  // False: kSinksMax sinks are subscribed already. A sink that is subscribed keeps only its new set.
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
  Traced wanted_ = 0;  // by any sink
};

}  // namespace weft::core
