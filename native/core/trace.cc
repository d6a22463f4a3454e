// Keeps the list of sinks and passes each event to the sinks that subscribed to its kind.
#include "native/core/trace.h"

namespace weft::core {

bool Trace::subscribe(TraceSink* sink, Traced kinds) noexcept {
  unsubscribe(sink);
  for (Subscription& each : sinks_) {
    if (each.sink != nullptr) continue;
    each = {sink, kinds};
    sum_up();
    return true;
  }
  return false;
}

void Trace::unsubscribe(const TraceSink* sink) noexcept {
  for (Subscription& each : sinks_) {
    if (each.sink == sink) each = {};
  }
  sum_up();
}

void Trace::sum_up() noexcept {
  wanted_ = 0;
  for (const Subscription& each : sinks_) wanted_ |= each.kinds;
}

void Trace::tell(const Event& event) const noexcept {
  for (const Subscription& each : sinks_) {
    if ((each.kinds & traced(event.kind)) != 0) each.sink->on_event(now_ns, event);
  }
}

void Trace::emit(const Decision& decision) const noexcept {
  for (const Subscription& each : sinks_) {
    if ((each.kinds & kTraceDecisions) != 0) each.sink->on_decision(decision);
  }
}

void Trace::emit(i64 at_ns, const ProcessEvent& event) const noexcept {
  for (const Subscription& each : sinks_) {
    if ((each.kinds & kTraceProcesses) != 0) each.sink->on_process(at_ns, event);
  }
}

}  // namespace weft::core
