// A session: the relation of two processes in the direction in which one dialled. It outlives the control sockets
// between them and ends with a verdict. A plain record of the control thread; control_sessions.cc works on it.
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

  std::uint64_t id = 0;            // local id; part of the key of peers
  std::uint64_t token = 0;         // random; the peer's frames carry it
  std::uint64_t remote_token = 0;  // our frames carry it; 0: no hello yet
  std::uint64_t node = 0;          // of the peer process; 0: not known yet
  bool dialled = false;            // this end opens connections in it
  bool greeted = false;
  bool confirmed = false;  // at least one connection was completed in it
  std::uint32_t device = 0, remote_device = 0;
  std::uint16_t remote_engines = 0;
  datapath::SocketAddress target;               // dialled: the address
  datapath::SocketAddress control;              // where the peer accepts control sockets; no port: not reachable
  std::uint16_t local_port = 0;                 // accepted: local port of the first control socket
  std::string key;                              // dialled: device and target as text
  std::string name;                             // for logs and errors
  std::vector<datapath::SocketAddress> proved;  // addresses that the peer has connected from

  // Control sockets.
  std::uint64_t current = 0;         // the one used for sending; 0: none has joined
  std::int64_t attempt_ns = 0;       // earliest time of the next attempt
  std::uint32_t proofs = 0;          // connecting sockets that prove our other addresses; opens wait for them
  std::int64_t proofs_until_ns = 0;  // until this time
  // Of the last attempt: its error and status; would_block: it may still succeed, or another may.
  std::string last_error;
  Status last_status = Status::would_block;
  bool ended = false;          // the peer's host closed or reset the last one
  bool refused = false;        // and it refuses new ones, or another process accepts them
  std::int64_t ended_ns = -1;  // since when the session has none; -1: it has one, or never had one

  // Opens that are queued, by dial id, and the number of opens that wait for the peer.
  std::deque<std::uint64_t> waiting;
  std::uint32_t opening = 0;

  // Opens of the peer that were confirmed or abandoned: a late duplicate of one is ignored.
  std::deque<std::uint64_t> finished;

  // The examination of a quiet process.
  PeerHealth health;
  std::int64_t tick_ns = -1;  // the next tick; -1: no examination
  std::uint64_t ping = 0;     // number of the last ping
  std::int64_t ping_ns = -1;  // when it was sent; -1: none is unanswered
  std::int64_t pong_ns = -1;
  bool engines_turn = true;
  int well_ticks = 0;
  std::int64_t stall_ns = -1;              // since when it is considered stalled
  std::int64_t stall_logged_ns = -1;       // when that was last logged
  std::int64_t dial_stall_logged_ns = -1;  // when it was last logged that dials wait for it

  std::int64_t busy_ns = 0;  // when it last had a connection or a dial
  // When the session ends; -1: not scheduled. After the peer's goodbye its last data is read until then; without a
  // control socket and unconfirmed, the session waits for a new one until then.
  std::int64_t ends_ns = -1;
};

}  // namespace weft::control
