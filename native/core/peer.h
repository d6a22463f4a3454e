// A remote engine as a local engine sees it: its paths, replies to its probes, keepalives, and when it was last heard.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <new>

#include "native/core/flow_list.h"
#include "native/core/flow_queue.h"
#include "native/core/path_set.h"
#include "native/wire/burst.h"

namespace weft::core {

class Peer {
 public:
  Peer(Shared* shared, u32 index, const PeerConfig& config)
      : shared_(shared),
        config_(config),
        paths_(shared, config.path, index, config.path_count, config.port_buffer_bytes,
               wire::segment_payload_bytes(config.segment_bytes), config.search_size ? config.segment_bytes : u16{0},
               config.path_counters, config.open_bytes),
        index_(index),
        counters_(config.counters == nullptr ? &own_counters_ : config.counters) {
    if (config.rtt_ns > 0) paths_.know(config.rtt_ns);
    if (config.rtt_expected_ns > 0) paths_.expect(config.rtt_expected_ns);
  }

  // Number of flows to this peer, open or deferred. A dead peer is released when its last flow is.
  u32 flows() const noexcept { return flows_; }
  void on_flow_opened(Flow* flow) noexcept {
    list_.add(flow);
    counters_->flows.set(++flows_);
  }
  void on_flow_released(Flow* flow) noexcept {
    list_.remove(flow);
    counters_->flows.set(--flows_);
  }
  void on_flow_deferred() noexcept { counters_->flows.set(++flows_); }
  void on_deferred_opened(Flow* flow) noexcept { list_.add(flow); }
  void on_deferred_released() noexcept { counters_->flows.set(--flows_); }
  Flow* first_flow() const noexcept { return list_.first(); }

  PathSet& paths() noexcept { return paths_; }
  const PathSet& paths() const noexcept { return paths_; }
  const PeerConfig& config() const noexcept { return config_; }
  void own_path_policy(PolicyChoice choice) noexcept { config_.path = choice; }
  FlowQueue& path_waiters() noexcept { return path_waiters_; }
  const PeerCells& counters() const noexcept { return *counters_; }
  bool dead() const noexcept { return dead_; }
  void kill() noexcept { dead_ = true; }

  // Notes that the peer sent something that cannot be a replay, such as new data or the answer to a probe.
  void on_heard(i64 now_ns) noexcept {
    // After a silence this long the peer's process was probably stopped. The silence limit of stuck flows starts again
    // now.
    if (now_ns - heard_ns() >= shared_->config.peer_silence_ns) resumed_ns_ = now_ns;
    heard_ns_ = now_ns;
  }
  // When the peer was last heard; -1: never.
  i64 heard_ns() const noexcept { return std::max(heard_ns_, paths_.heard_ns()); }
  // When the peer was heard again after its last silence; 0: it never was silent.
  i64 resumed_ns() const noexcept { return std::max(resumed_ns_, paths_.resumed_ns()); }
  bool waited_for() const noexcept { return waiting_flows_ != 0; }
  void on_flow_waits(i64 now_ns) noexcept {
    if (waiting_flows_++ == 0) {
      waited_since_ns_ = now_ns;
      keepalive_ns_ = now_ns + shared_->config.peer_silence_ns / 4;
    }
  }
  void on_flow_rests() noexcept { --waiting_flows_; }
  // Sends keepalives over several paths, even if no flow waits for the peer.
  void solicit() noexcept { keepalives_due_ = kSolicitPaths; }

  void on_probe(u8 path, const wire::Probe& probe) noexcept {
    if (path >= paths_.count() || reply_count_ == kRepliesMax) return;  // the peer will probe again
    if (replies_ == nullptr) replies_.reset(new (std::nothrow) Reply[kRepliesMax]);
    if (replies_ == nullptr) return;
    replies_[reply_count_++] = {probe, path};
  }
  bool quiet(i64 now_ns) const noexcept { return now_ns - quiet_since_ns() >= shared_->config.peer_silence_ns / 4; }
  // Whether a flow waits for the peer and two rounds of keepalives went unanswered.
  bool unanswered(i64 now_ns) const noexcept {
    const i64 silence_ns = shared_->config.peer_silence_ns;
    return waiting_flows_ != 0 && now_ns - quiet_since_ns() >= silence_ns / 4 + silence_ns / 16;
  }
  bool silent(i64 now_ns) const noexcept {
    return waiting_flows_ != 0 && now_ns - quiet_since_ns() >= shared_->config.peer_silence_ns;
  }
  // Writes the next probe reply, path probe or keepalive; false when none is due.
  bool poll_transmit(i64 now_ns, TxBurst* out) noexcept;
  // Handles a reply to a keepalive. False: the id belongs to no recent unanswered keepalive.
  bool on_keepalive_reply(i64 now_ns, u8 path, u64 probe_id) noexcept;
  i64 poll_timeout() const noexcept {
    if (dead_) return kNever;
    const bool judged_here = waiting_flows_ != 0 && !shared_->config.external_failure_detector;
    const i64 silence_ns = judged_here ? quiet_since_ns() + shared_->config.peer_silence_ns : kNever;
    const i64 keepalive_ns = waiting_flows_ == 0 ? kNever : keepalive_ns_;
    return std::min({paths_.poll_timeout(), silence_ns, keepalive_ns});
  }

  i64 scheduled_ns = kNever;  // this peer's deadline in the stack's timer heap
  i64 notified_ns = kNever;   // time of the last event peer_quiet
  bool in_control = false;    // the peer is in the stack's control queue

 private:
  // A quiet peer gets 32 rounds of keepalives per silence limit, each on the path last heard from and on three others.
  // Even with 10 % loss and three of four paths dead, all probes on the working path are lost only once in 10^13
  // silences (decision 0019).
  static constexpr i64 kKeepaliveRounds = 32;
  static constexpr u8 kKeepalivePaths = 4, kSolicitPaths = 4;
  struct Reply {
    wire::Probe probe;
    u8 path;
  };
  struct Keepalives {
    std::array<u64, 64> ids{};  // ids of unanswered keepalives; 0: free entry
    std::size_t next = 0;
  };
  i64 quiet_since_ns() const noexcept { return std::max(heard_ns(), waited_since_ns_); }
  u8 keepalive_path() noexcept;
  void write_probe(wire::Type type, u8 path, const wire::Probe& probe, u16 bytes, TxBurst* out) const noexcept;

  Shared* shared_;
  PeerConfig config_;
  PathSet paths_;
  FlowQueue path_waiters_;  // flows that wait because every path was full
  static constexpr std::size_t kRepliesMax = 16;
  std::unique_ptr<Reply[]> replies_;  // null until the peer sends a probe
  std::size_t reply_count_ = 0;
  u32 index_;
  std::unique_ptr<Keepalives> keepalives_;  // null until a keepalive is sent
  PeerCells own_counters_;                  // the peer's counters if its configuration supplies none
  PeerCells* counters_;
  FlowList list_;
  u32 flows_ = 0;
  u32 waiting_flows_ = 0;
  i64 heard_ns_ = -1;
  i64 resumed_ns_ = 0;
  i64 waited_since_ns_ = 0;
  i64 keepalive_ns_ = kNever;
  u8 keepalive_path_ = 0;         // path of the last keepalive in the rotation
  u8 keepalives_due_ = 0;         // number of keepalives left to send in this round of keepalives
  bool keepalive_known_ = false;  // the next keepalive uses the path last heard from
  bool dead_ = false;
};

}  // namespace weft::core
