// A remote engine: the paths to it, what it is owed beside the flows (probe replies), and whether it still lives.
// Holds no flow; the stack counts which of its flows wait for something.
#pragma once

#include <algorithm>
#include <memory>
#include <new>

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
               wire::segment_payload_bytes(config.segment_bytes), config.search_size ? config.segment_bytes : u16{0}),
        index_(index) {
    if (config.rtt_ns > 0) paths_.know(config.rtt_ns);
  }

  PathSet& paths() noexcept { return paths_; }
  const PathSet& paths() const noexcept { return paths_; }
  const PeerConfig& config() const noexcept { return config_; }
  void own_path_policy(PolicyChoice choice) noexcept { config_.path = choice; }
  FlowQueue& path_waiters() noexcept { return path_waiters_; }
  bool dead() const noexcept { return dead_; }
  void kill() noexcept { dead_ = true; }

  // A well-formed packet of the peer came in.
  void on_heard(i64 now_ns) noexcept {
    // A peer that was silent for so long was stopped: until now nobody could have made progress.
    if (now_ns - heard_ns_ >= shared_->config.peer_silence_ns) resumed_ns_ = now_ns;
    heard_ns_ = now_ns;
  }
  i64 resumed_ns() const noexcept { return resumed_ns_; }
  i64 heard_ns() const noexcept { return heard_ns_; }
  void on_flow_waits(i64 now_ns) noexcept {
    if (waiting_flows_++ == 0) {
      heard_ns_ = std::max(heard_ns_, now_ns);
      keepalive_ns_ = now_ns + shared_->config.peer_silence_ns / 4;
    }
  }
  void on_flow_rests() noexcept { --waiting_flows_; }

  void on_probe(u8 path, const wire::Probe& probe) noexcept {
    if (path >= paths_.count() || reply_count_ == kRepliesMax) return;  // a lost reply costs the prober one interval
    if (replies_ == nullptr) replies_.reset(new (std::nothrow) Reply[kRepliesMax]);
    if (replies_ == nullptr) return;
    replies_[reply_count_++] = {probe, path};
  }
  bool quiet(i64 now_ns) const noexcept { return now_ns - heard_ns_ >= shared_->config.peer_silence_ns / 4; }
  bool silent(i64 now_ns) const noexcept {
    return waiting_flows_ != 0 && now_ns - heard_ns_ >= shared_->config.peer_silence_ns;
  }
  // A reply, a path probe, or a sign of life asked for; false when nothing is due.
  bool poll_transmit(i64 now_ns, TxBurst* out) noexcept;
  bool pending(i64 now_ns) const noexcept { return reply_count_ != 0 || poll_timeout() <= now_ns; }
  i64 poll_timeout() const noexcept {
    if (dead_) return kNever;
    const i64 silence_ns = waiting_flows_ == 0 ? kNever : heard_ns_ + shared_->config.peer_silence_ns;
    const i64 keepalive_ns = waiting_flows_ == 0 ? kNever : keepalive_ns_;
    return std::min({paths_.poll_timeout(), silence_ns, keepalive_ns});
  }

  i64 scheduled_ns = kNever;  // of the stack's timer
  u32 flows = 0;              // open on it; a dead peer goes with its last
  bool in_control = false;    // waits in the stack's control queue

 private:
  struct Reply {
    wire::Probe probe;
    u8 path;
  };
  void write_probe(wire::Type type, u8 path, const wire::Probe& probe, u16 bytes, TxBurst* out) const noexcept;

  Shared* shared_;
  PeerConfig config_;
  PathSet paths_;
  FlowQueue path_waiters_;  // flows that found every path full
  static constexpr std::size_t kRepliesMax = 16;
  std::unique_ptr<Reply[]> replies_;  // once the peer has asked
  std::size_t reply_count_ = 0;
  u32 index_;
  u32 waiting_flows_ = 0;
  i64 heard_ns_ = 0;
  i64 resumed_ns_ = 0;
  i64 keepalive_ns_ = kNever;
  u8 keepalive_path_ = 0;
  bool dead_ = false;
};

}  // namespace weft::core
