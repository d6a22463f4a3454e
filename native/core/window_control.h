// Asks the window policy for a flow's congestion window and pacing rate, and limits the answers.
#pragma once

#include "native/core/delivery_rate.h"
#include "native/core/pacer.h"
#include "native/core/policy_slot.h"
#include "native/core/rtt_estimator.h"
#include "native/core/shared.h"
#include "native/wire/hop_records.h"

namespace weft::core {

struct WindowFacts {
  i64 now_ns = 0;
  const RttEstimator* rtt = nullptr;
  i64 rtt_ns = -1;  // RTT sample of this event; < 0: none
  i64 ack_delay_ns = 0;
  i64 acked_bytes = 0, acked_segments = 0, ecn_segments = 0;
  i64 lost_bytes = 0, lost_segments = 0, trimmed_segments = 0;
  i64 message_bytes = 0, message_left_bytes = 0;  // of the oldest message that is not delivered
  i64 inflight_bytes = 0, delivered_bytes = 0;
  i64 sent_bytes = 0, sent_segments = 0;
  DeliverySample delivery;
  const wire::HopRecords* hops = nullptr;  // telemetry of the last acknowledged segment; null: none
  u8 path = 0;
  bool app_limited = false;

  // A copy without the facts of an event (samples, acknowledgments, losses), for a policy that starts.
  WindowFacts standing() const noexcept {
    WindowFacts facts;
    facts.now_ns = now_ns;
    facts.rtt = rtt;
    facts.inflight_bytes = inflight_bytes;
    facts.delivered_bytes = delivered_bytes;
    facts.message_bytes = message_bytes;
    facts.message_left_bytes = message_left_bytes;
    facts.path = path;
    facts.app_limited = app_limited;
    return facts;
  }
};

class WindowControl {
 public:
  WindowControl(Shared* shared, PolicyChoice choice, u32 flow, u16 segment_bytes) noexcept;
  bool open(std::size_t path_count) noexcept { return policy_.open(path_count); }

  void on_ack(const WindowFacts& facts) noexcept { ask(policy::hook::window_ack, 0, facts); }
  void on_loss(const WindowFacts& facts) noexcept { ask(policy::hook::window_loss, 1, facts); }
  void on_timeout(const WindowFacts& facts) noexcept { ask(policy::hook::window_timeout, 2, facts); }
  // A burst was handed to the datapath. Only for a policy that has the hook: see hears_sends().
  void on_send(const WindowFacts& facts) noexcept { ask(policy::hook::window_send, 4, facts); }
  bool hears_sends() const noexcept { return policy_.has(policy::hook::window_send); }
  // The time that the policy asked for is reached; see timer_ns().
  void on_timer(const WindowFacts& facts) noexcept;
  i64 timer_ns() const noexcept { return timer_ns_; }  // kNever: none
  bool reads_delivery() const noexcept { return (policy_.descriptor().reads & policy::reads_delivery) != 0; }

  void prefetch() const noexcept { policy_.prefetch_flow(); }
  i64 window_bytes() const noexcept { return window_bytes_; }
  Pacer& pacer() noexcept { return pacer_; }
  const Pacer& pacer() const noexcept { return pacer_; }
  bool started() const noexcept { return started_; }
  void start(const WindowFacts& facts) noexcept;
  // Switches to another policy, which starts with the present window and `facts`. False when out of memory: the old
  // policy stays.
  bool replace(PolicyChoice choice, const WindowFacts& facts) noexcept;
  bool set_params(PolicyChoice choice) noexcept { return policy_.set_params(choice); }
  PolicyChoice choice() const noexcept { return policy_.choice(); }

 private:
  void ask(std::size_t hook, i64 kind, const WindowFacts& facts) noexcept;
  policy::WindowEvent event(const WindowFacts& facts, i64 kind) noexcept;
  policy::WindowResult standing() const noexcept;
  bool apply(const policy::WindowResult& result, const WindowFacts& facts) noexcept;

  Shared* shared_;
  PolicySlot policy_;
  Pacer pacer_;
  i64 window_bytes_ = 0;
  i64 timer_ns_ = kNever;
  i64 rtt_ns_ = 0;  // the last sample, on any path; 0: none
  u32 flow_;
  u16 segment_bytes_;
  bool started_ = false;
  bool partial_ = false;  // the window is below one segment, and the pacer sends the segments at window / RTT
};

}  // namespace weft::core
