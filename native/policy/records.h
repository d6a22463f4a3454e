// The records that policies read and write, as congestion/api.py declares them.
// Never edited: `python -m transport.compiler --header native/policy/records.h` writes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::policy {

// Kinds of a PathEvent.
namespace path_kind {
inline constexpr std::int64_t pick = 0, good = 1, ecn = 2, nack = 3, timeout = 4;
}  // namespace path_kind

// One acknowledgment, loss or timeout of a flow on a path.
struct WindowEvent {
  std::int64_t now_ns;  // the caller's clock
  std::int64_t kind;    // -1 start, 0 ack, 1 loss, 2 timeout
  std::int64_t path;
  std::int64_t segment_bytes;
  std::int64_t rtt_ns;
  std::int64_t rtt_min_ns;
  std::int64_t srtt_ns;
  std::int64_t ack_delay_ns;  // how long the receiver had the segment, less what its thread was away
  std::int64_t acked_bytes;
  std::int64_t acked_segments;
  std::int64_t ecn_segments;
  std::int64_t lost_bytes;
  std::int64_t lost_segments;
  std::int64_t inflight_bytes;
  std::int64_t delivered_bytes;  // cumulative
  std::int64_t window_bytes;     // in force
  std::int64_t window_bytes_max;
  std::int64_t app_limited;       // 1: the sender had less to send than the window allowed
  std::int64_t link_bytes_per_s;  // 0: unknown
  double rand;                    // in [0, 1)
  double hint_window_bytes;       // at start: 0, or the window of the policy that this one replaces
};
static_assert(sizeof(WindowEvent) == 168);
static_assert(offsetof(WindowEvent, now_ns) == 0);
static_assert(offsetof(WindowEvent, kind) == 8);
static_assert(offsetof(WindowEvent, path) == 16);
static_assert(offsetof(WindowEvent, segment_bytes) == 24);
static_assert(offsetof(WindowEvent, rtt_ns) == 32);
static_assert(offsetof(WindowEvent, rtt_min_ns) == 40);
static_assert(offsetof(WindowEvent, srtt_ns) == 48);
static_assert(offsetof(WindowEvent, ack_delay_ns) == 56);
static_assert(offsetof(WindowEvent, acked_bytes) == 64);
static_assert(offsetof(WindowEvent, acked_segments) == 72);
static_assert(offsetof(WindowEvent, ecn_segments) == 80);
static_assert(offsetof(WindowEvent, lost_bytes) == 88);
static_assert(offsetof(WindowEvent, lost_segments) == 96);
static_assert(offsetof(WindowEvent, inflight_bytes) == 104);
static_assert(offsetof(WindowEvent, delivered_bytes) == 112);
static_assert(offsetof(WindowEvent, window_bytes) == 120);
static_assert(offsetof(WindowEvent, window_bytes_max) == 128);
static_assert(offsetof(WindowEvent, app_limited) == 136);
static_assert(offsetof(WindowEvent, link_bytes_per_s) == 144);
static_assert(offsetof(WindowEvent, rand) == 152);
static_assert(offsetof(WindowEvent, hint_window_bytes) == 160);

// What a window policy answers.
struct WindowResult {
  double window_bytes;
  double pacing_bytes_per_s;  // 0: unpaced
};
static_assert(sizeof(WindowResult) == 16);
static_assert(offsetof(WindowResult, window_bytes) == 0);
static_assert(offsetof(WindowResult, pacing_bytes_per_s) == 8);

// A burst that wants a path, or what came back from one.
struct PathEvent {
  std::int64_t now_ns;  // the caller's clock
  std::int64_t kind;    // -1 start, 0 pick, 1 good, 2 ecn, 3 nack, 4 timeout
  std::int64_t path;
  std::int64_t n_paths;
  std::int64_t rtt_ns;
  std::int64_t bytes;        // that the feedback is about
  std::int64_t ready_bytes;  // waiting to be sent
  std::int64_t segment_bytes;
  std::int64_t is_resend;
  std::int64_t avoid_path;  // -1, or the path on which the segment was lost
  std::int64_t flow;        // whose burst or report it is: a hash, >= 0; -1: of no flow (a probe came back)
  double rand;              // in [0, 1)
  double rand2;             // in [0, 1), independent of rand
};
static_assert(sizeof(PathEvent) == 104);
static_assert(offsetof(PathEvent, now_ns) == 0);
static_assert(offsetof(PathEvent, kind) == 8);
static_assert(offsetof(PathEvent, path) == 16);
static_assert(offsetof(PathEvent, n_paths) == 24);
static_assert(offsetof(PathEvent, rtt_ns) == 32);
static_assert(offsetof(PathEvent, bytes) == 40);
static_assert(offsetof(PathEvent, ready_bytes) == 48);
static_assert(offsetof(PathEvent, segment_bytes) == 56);
static_assert(offsetof(PathEvent, is_resend) == 64);
static_assert(offsetof(PathEvent, avoid_path) == 72);
static_assert(offsetof(PathEvent, flow) == 80);
static_assert(offsetof(PathEvent, rand) == 88);
static_assert(offsetof(PathEvent, rand2) == 96);

// What a path policy answers to pick.
struct PathResult {
  std::int64_t path;
  std::int64_t burst_bytes;
};
static_assert(sizeof(PathResult) == 16);
static_assert(offsetof(PathResult, path) == 0);
static_assert(offsetof(PathResult, burst_bytes) == 8);

// The fields that begin every path record of the path family; the core writes them.
struct PathHead {
  std::int64_t usable;  // 0: dead or retired
  std::int64_t inflight_bytes;
  std::int64_t rtt_ns;
};
static_assert(sizeof(PathHead) == 24);
static_assert(offsetof(PathHead, usable) == 0);
static_assert(offsetof(PathHead, inflight_bytes) == 8);
static_assert(offsetof(PathHead, rtt_ns) == 16);

// An acknowledgment on a path, or its timer.
struct LossEvent {
  std::int64_t now_ns;  // the caller's clock
  std::int64_t kind;    // -1 start, 0 ack, 1 timer
  std::int64_t path;
  std::int64_t segment_bytes;
  std::int64_t rtt_ns;
  std::int64_t srtt_ns;
  std::int64_t rttvar_ns;
  std::int64_t rtt_min_ns;
  std::int64_t rto_ns;                   // with backoff
  std::int64_t newest_acked_sent_ns;     // of the newest segment of this flow delivered on this path, -1: none
  std::int64_t oldest_inflight_sent_ns;  // on this path, -1: none
  std::int64_t newest_inflight_sent_ns;  // on this path, -1: none
  std::int64_t highest_acked_seq;
  std::int64_t cumulative_seq;
  std::int64_t acked_segments;
  std::int64_t inflight_segments;  // on this path
  std::int64_t spurious_segments;  // of the flow: judged lost though delivered, said by this acknowledgment
  std::int64_t sacked_segments;    // of this flow, delivered above cumulative_seq
  std::int64_t window_bytes;       // in force
  std::int64_t probed_sent_ns;     // when the newest probe that came back on this path had left, -1: none
  double rand;                     // in [0, 1)
};
static_assert(sizeof(LossEvent) == 168);
static_assert(offsetof(LossEvent, now_ns) == 0);
static_assert(offsetof(LossEvent, kind) == 8);
static_assert(offsetof(LossEvent, path) == 16);
static_assert(offsetof(LossEvent, segment_bytes) == 24);
static_assert(offsetof(LossEvent, rtt_ns) == 32);
static_assert(offsetof(LossEvent, srtt_ns) == 40);
static_assert(offsetof(LossEvent, rttvar_ns) == 48);
static_assert(offsetof(LossEvent, rtt_min_ns) == 56);
static_assert(offsetof(LossEvent, rto_ns) == 64);
static_assert(offsetof(LossEvent, newest_acked_sent_ns) == 72);
static_assert(offsetof(LossEvent, oldest_inflight_sent_ns) == 80);
static_assert(offsetof(LossEvent, newest_inflight_sent_ns) == 88);
static_assert(offsetof(LossEvent, highest_acked_seq) == 96);
static_assert(offsetof(LossEvent, cumulative_seq) == 104);
static_assert(offsetof(LossEvent, acked_segments) == 112);
static_assert(offsetof(LossEvent, inflight_segments) == 120);
static_assert(offsetof(LossEvent, spurious_segments) == 128);
static_assert(offsetof(LossEvent, sacked_segments) == 136);
static_assert(offsetof(LossEvent, window_bytes) == 144);
static_assert(offsetof(LossEvent, probed_sent_ns) == 152);
static_assert(offsetof(LossEvent, rand) == 160);

// Horizons: the core walks its send order and takes what lies behind for lost.
struct LossResult {
  std::int64_t lost_below_seq;       // -1: none
  std::int64_t lost_sent_before_ns;  // -1: none; what this flow sent on this path strictly before is lost
  std::int64_t next_check_ns;        // absolute; < 0: rto_ns after the oldest in flight
  std::int64_t probe;                // 1: probe this path now; its return calls on_ack with probed_sent_ns
};
static_assert(sizeof(LossResult) == 32);
static_assert(offsetof(LossResult, lost_below_seq) == 0);
static_assert(offsetof(LossResult, lost_sent_before_ns) == 8);
static_assert(offsetof(LossResult, next_check_ns) == 16);
static_assert(offsetof(LossResult, probe) == 24);

// A sender's demand, or the receiver's tick.
struct CreditEvent {
  std::int64_t now_ns;          // the caller's clock
  std::int64_t kind;            // -1 start, 0 demand, 1 tick
  std::int64_t demand_bytes;    // cumulative: what the sender asked for
  std::int64_t granted_bytes;   // cumulative, never falls
  std::int64_t received_bytes;  // cumulative
  std::int64_t segment_bytes;
  std::int64_t active_flows;
  std::int64_t link_bytes_per_s;  // 0: unknown
  std::int64_t ecn_segments;
  double rand;  // in [0, 1)
};
static_assert(sizeof(CreditEvent) == 80);
static_assert(offsetof(CreditEvent, now_ns) == 0);
static_assert(offsetof(CreditEvent, kind) == 8);
static_assert(offsetof(CreditEvent, demand_bytes) == 16);
static_assert(offsetof(CreditEvent, granted_bytes) == 24);
static_assert(offsetof(CreditEvent, received_bytes) == 32);
static_assert(offsetof(CreditEvent, segment_bytes) == 40);
static_assert(offsetof(CreditEvent, active_flows) == 48);
static_assert(offsetof(CreditEvent, link_bytes_per_s) == 56);
static_assert(offsetof(CreditEvent, ecn_segments) == 64);
static_assert(offsetof(CreditEvent, rand) == 72);

// What a credit policy answers.
struct CreditResult {
  std::int64_t granted_bytes;  // cumulative, never falls
  std::int64_t next_tick_ns;   // absolute; < 0: none
};
static_assert(sizeof(CreditResult) == 16);
static_assert(offsetof(CreditResult, granted_bytes) == 0);
static_assert(offsetof(CreditResult, next_tick_ns) == 8);

}  // namespace weft::policy
