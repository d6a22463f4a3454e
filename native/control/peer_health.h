// Whether a remote process is gone, stalled, or cut off from its data paths, judged from what is known of it.
// A pure state machine: facts and the time go in, a verdict comes out; it reads no clock and touches no socket.
#pragma once

#include <cstdint>

#include "native/core/status.h"

namespace weft::control {

struct HealthLimits {
  std::int64_t dead_ns = 20'000'000'000;     // nothing at all is heard, not even from its kernel
  std::int64_t silence_ns = 20'000'000'000;  // it runs, and no data path carries
  std::int64_t stall_ns = 0;                 // its kernel answers and it does not; 0: for ever
  std::int64_t tick_ns = 250'000'000;        // how often on_tick() is called
};

// What is known at a tick. Times are of our clock; -1: never.
struct HealthFacts {
  std::int64_t data_ns = -1;    // last authenticated packet of the process on any data path
  std::int64_t kernel_ns = -1;  // last sign of its host's TCP: an acknowledgment, a connection that was taken
  std::int64_t pong_ns = -1;    // last answer of its control thread
  bool engines_turn = true;     // that answer said that all of its engines take their turns
  bool data_quiet = false;      // a flow waits for one of its engines, which was not heard for a quarter of the silence
  bool ended = false;           // every control socket was closed or reset by its host
  bool refused = false;         // and its host refuses new ones, or another process takes them
};

// What a process that is looked at is taken for.
enum class Condition : std::uint8_t { well, quiet, stalled, unreachable };

class PeerHealth {
 public:
  explicit PeerHealth(const HealthLimits& limits) noexcept : limits_(limits) {}

  // Begins a new examination: a peer became quiet, or lost its last control socket.
  void begin(std::int64_t now_ns) noexcept;
  bool begun() const noexcept { return tick_ns_ >= 0; }
  void end() noexcept { *this = PeerHealth(limits_); }

  // The verdict: ok while there is none, else peer_dead, peer_silent or peer_stalled.
  Status on_tick(std::int64_t now_ns, const HealthFacts& facts) noexcept;
  Condition condition() const noexcept { return condition_; }
  std::int64_t stalled_for_ns() const noexcept { return stalled_ns_; }

 private:
  // An answer is recent when it came within this many ticks; a process that runs answers each of them.
  static constexpr std::int64_t kRecentTicks = 4;
  // Keepalives of the control socket are answered once a second at most.
  static constexpr std::int64_t kKernelRecentNs = 2'500'000'000;
  // After its sockets were closed and refused, a live process would still answer probes of its data paths.
  static constexpr std::int64_t kConfirmNs = 150'000'000;
  // What one tick may add to that: a single late one proves nothing, as the answers are read after it.
  static constexpr std::int64_t kEndedCreditNs = 60'000'000;
  // The same where its host neither refuses nor answers.
  static constexpr std::int64_t kEndedNsMax = 3'000'000'000;

  HealthLimits limits_;
  Condition condition_ = Condition::well;
  std::int64_t tick_ns_ = -1;  // the last one; -1: not begun
  // Credited time: a tick that comes late (this process was stopped or starved) counts as two at most.
  std::int64_t nothing_ns_ = 0;  // nothing at all was heard
  std::int64_t silent_ns_ = 0;   // it ran, and no data came
  std::int64_t stalled_ns_ = 0;  // its host answered, and it did not
  std::int64_t ended_ns_ = 0;    // its sockets were closed, and no data came
};

}  // namespace weft::control
