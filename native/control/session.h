// What two processes are to each other, in the direction in which one dialled: it outlives the control sockets between
// them, and ends with a verdict. A record of the control thread's; what is done with it is in control_sessions.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "native/control/peer_health.h"
#include "native/core/status.h"
#include "native/datapath/address.h"

namespace weft::control {

struct Session {
  explicit Session(const HealthLimits& limits) noexcept : health(limits) {}

  std::uint64_t id = 0;            // ours; peers are keyed by it
  std::uint64_t token = 0;         // random: what the other end names it by
  std::uint64_t remote_token = 0;  // what we name it by; 0: not greeted yet
  std::uint64_t node = 0;          // of the other process; 0: not known yet
  bool dialled = false;            // ours: connections are opened by us
  bool greeted = false;
  bool confirmed = false;  // a connection was opened in it to the end
  std::uint32_t device = 0, remote_device = 0;
  std::uint16_t remote_engines = 0;
  datapath::SocketAddress target;   // dialled: where to
  datapath::SocketAddress control;  // where the other process takes control sockets; no port: nowhere we can reach
  std::uint16_t local_port = 0;     // accepted: on which port of ours the first control socket came
  std::string key;                  // dialled: device and target as text
  std::string name;                 // for people
  std::vector<datapath::SocketAddress> proved;  // addresses that the other end has connected from

  // Control sockets.
  std::uint64_t current = 0;         // the one to send on; 0: none has joined
  std::int64_t attempt_ns = 0;       // when the next may be dialled
  std::uint32_t proofs = 0;          // sockets under way that prove our other addresses; opens wait for them
  std::int64_t proofs_until_ns = 0;  // but no longer
  // Of an attempt: what went wrong, and as what it counts; would_block: it may have got through, or another one may.
  std::string last_error;
  Status last_status = Status::would_block;
  bool ended = false;          // the last one was closed or reset by the other host
  bool refused = false;        // and new ones are refused, or answered by another process
  std::int64_t ended_ns = -1;  // since when there is none; -1: there is one, or never was

  // Opens that wait for their turn, by dial id, and how many are with the other end.
  std::deque<std::uint64_t> waiting;
  std::uint32_t opening = 0;

  // Opens of the other end that were confirmed or given up: a copy of one that comes late opens nothing.
  std::deque<std::uint64_t> finished;

  // The examination of a process that is quiet.
  PeerHealth health;
  std::int64_t tick_ns = -1;  // the next; -1: none is under way
  std::uint64_t ping = 0;     // number of the last one
  std::int64_t ping_ns = -1;  // when it was sent; -1: none is outstanding
  std::int64_t pong_ns = -1;
  bool engines_turn = true;
  int well_ticks = 0;
  std::int64_t stall_ns = -1;              // since when it has been taken for stalled
  std::int64_t stall_logged_ns = -1;       // when that was last said
  std::int64_t dial_stall_logged_ns = -1;  // when it was last said that dials wait for it

  std::int64_t busy_ns = 0;  // when it was last seen to be of use
  // When the session ends, unless -1: after the other end's farewell, what it sent last is still read until then;
  // without a control socket and unconfirmed, another one is awaited until then.
  std::int64_t ends_ns = -1;
};

}  // namespace weft::control
