// Reports what a flow sends: completed sends to the caller; messages, their segments and losses to the stack's trace.
#pragma once

#include "native/core/send_queue.h"
#include "native/core/shared.h"

namespace weft::core {

class SendTrace {
 public:
  SendTrace(Shared* shared, u32 flow, u32 peer) noexcept : shared_(shared), flow_(flow), peer_(peer) {}

  void done(const SendMessage& message) noexcept {
    Event event{};
    event.kind = Event::Kind::send_done;
    event.flow = flow_;
    event.cookie = message.cookie;
    event.value = message.message_bytes;
    event.message = message.number;
    shared_->report(event);
  }
  void message(Event::Kind kind, const SendMessage& message) noexcept {
    if (!shared_->trace.wants(kind)) return;
    Event event = of(kind);
    event.message = message.number;
    event.value = message.message_bytes;
    shared_->trace.emit(event);
  }
  // Reports that `segments` segments sent on the path were declared lost. `kind`: loss (by the loss policy) or timeout.
  void lost(Event::Kind kind, u8 path, i64 segments) noexcept {
    if (!shared_->trace.wants(kind)) return;
    Event event = of(kind);
    event.path = path;
    event.value = static_cast<u64>(segments);
    shared_->trace.emit(event);
  }

  // Counts the segments of a burst by message, and reports the count when the next segment is of another message or the
  // burst ends.
  class Burst {
   public:
    Burst(SendTrace* trace, Event::Kind kind, u8 path) noexcept : trace_(trace), kind_(kind), path_(path) {}
    ~Burst() { report(); }
    Burst(const Burst&) = delete;
    Burst& operator=(const Burst&) = delete;
    void add(u64 message) noexcept {
      if (message != message_) report();
      message_ = message;
      ++count_;
    }

   private:
    void report() noexcept {
      if (count_ == 0 || !trace_->shared_->trace.wants(kind_)) return;
      Event event{};
      event.kind = kind_;
      event.flow = trace_->flow_;
      event.path = path_;
      event.message = message_;
      event.value = count_;
      trace_->shared_->trace.emit(event);
      count_ = 0;
    }
    SendTrace* const trace_;
    const Event::Kind kind_;
    const u8 path_;
    u64 message_ = ~u64{0}, count_ = 0;
  };

 private:
  Event of(Event::Kind kind) const noexcept {
    Event event{};
    event.kind = kind;
    event.flow = flow_;
    event.peer = peer_;
    return event;
  }

  Shared* shared_;
  u32 flow_, peer_;
};

}  // namespace weft::core
