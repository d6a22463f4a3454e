// Judges whether a remote process is dead, stalled, or cut off from its data paths. A pure state machine: facts and
// the time go in, a verdict comes out; it reads no clock and uses no socket.
#pragma once

#include <cstdint>

#include "native/core/status.h"

namespace weft::control {

struct HealthLimits {
  std::int64_t dead_ns = 20'000'000'000;     // limit for a peer from which nothing arrives, not even from its kernel
  std::int64_t silence_ns = 20'000'000'000;  // limit for a peer process that runs while no data path works
  std::int64_t stall_ns = 0;                 // limit for a process that does not reply while its kernel does; 0: none
  std::int64_t tick_ns = 250'000'000;        // interval at which on_tick() is called
};

// What is known about the peer at a tick. Times are of the local clock; -1: never.
struct HealthFacts {
  std::int64_t data_ns = -1;    // last authenticated packet of the process on any data path
  std::int64_t kernel_ns = -1;  // last reply of its host's TCP: an acknowledgment, or an accepted connection
  std::int64_t pong_ns = -1;    // when the control thread of the peer last answered a ping
  bool engines_turn = true;     // the last pong says that all engines of the peer run
  // A local flow waits for a remote engine that has sent nothing for a quarter of the silence limit.
  bool data_quiet = false;
  bool ended = false;    // the peer's host closed or reset every control socket
  bool refused = false;  // the peer's host refuses new control sockets, or another process accepts them
};

// The state of a remote process as far as it is known.
enum class Condition : std::uint8_t { well, quiet, stalled, unreachable };

class PeerHealth {
 public:
  explicit PeerHealth(const HealthLimits& limits) noexcept : limits_(limits) {}

  // Begins to examine the peer, which became quiet or lost its last control socket.
  void begin(std::int64_t now_ns) noexcept;
  bool begun() const noexcept { return tick_ns_ >= 0; }
  void end() noexcept { *this = PeerHealth(limits_); }

  // Returns the verdict: peer_dead, peer_silent or peer_stalled; ok if there is none yet.
  Status on_tick(std::int64_t now_ns, const HealthFacts& facts) noexcept;
  Condition condition() const noexcept { return condition_; }
  std::int64_t stalled_for_ns() const noexcept { return stalled_ns_; }

 private:
  // A reply counts as recent within this many ticks; a running process replies to a ping in every tick.
  static constexpr std::int64_t kRecentTicks = 4;
  // A TCP acknowledgment counts as recent for this long, because keepalives are sent at most once a second.
  static constexpr std::int64_t kKernelRecentNs = 2'500'000'000;
  // How long a peer must stay silent to count as dead, after its host closed its control sockets and refused new ones:
  // within this time, a living process answers probes on its data paths.
  static constexpr std::int64_t kConfirmNs = 150'000'000;
  // The most that one tick adds to `ended_ns_`: a single late tick proves nothing, because this process reads replies
  // only after the tick.
  static constexpr std::int64_t kEndedCreditNs = 60'000'000;
  // How long a peer must at most stay silent to count as dead, after its host closed its control sockets, if the host
  // neither refuses new ones nor replies.
  static constexpr std::int64_t kEndedNsMax = 3'000'000'000;

  HealthLimits limits_;
  Condition condition_ = Condition::well;
  std::int64_t tick_ns_ = -1;  // time of the last tick; -1: no examination has begun
  // The timers below add up time between ticks. A late tick (this process was stopped or starved) counts as at most two
  // tick lengths.
  std::int64_t nothing_ns_ = 0;  // how long nothing arrived from the peer's host
  std::int64_t silent_ns_ = 0;   // how long the peer process ran but sent no data
  std::int64_t stalled_ns_ = 0;  // how long the peer's host replied, but the peer process did not
  std::int64_t ended_ns_ = 0;    // how long all control sockets were closed and no data arrived
};

}  // namespace weft::control
