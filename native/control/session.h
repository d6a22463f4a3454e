// A session: the relation between a process that dialled and the process that it reached. It outlives the control
// sockets between them and ends with a verdict. It is plain data of the control loop; control_sessions.cc works on
// it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "native/control/keys.h"
#include "native/control/peer_health.h"
#include "native/core/status.h"
#include "native/datapath/address.h"

namespace weft::control {

struct Session {
  explicit Session(const HealthLimits& limits) noexcept : health(limits) {}

  std::uint64_t id = 0;            // local id, which is part of the keys of its peers
  std::uint64_t token = 0;         // random; the peer's hello must carry it
  std::uint64_t remote_token = 0;  // the peer's token for the session; 0: no hello received yet
  std::uint64_t node = 0;          // number of the peer process; 0: not known yet
  Guard guard = Guard::none;       // what each of its control sockets proves in TLS: nothing, a secret, or a key
  HandleKey handle_key{};          // at the dialling end, with Guard::key: the key of the peer process's handles
  bool dialled = false;            // this end opened the session, and opens connections in it
  bool greeted = false;
  bool confirmed = false;  // at least one connection was completed in this session
  std::uint32_t device = 0, remote_device = 0;
  std::uint16_t remote_engines = 0;
  datapath::SocketAddress target;               // at the dialling end: the dialled address
  datapath::SocketAddress control;              // where the peer accepts control sockets; port 0: it cannot be reached
  std::uint16_t local_port = 0;                 // at the accepting end: local port of the first control socket
  std::string key;                              // at the dialling end: device, target and process as text
  std::string local;                            // the peer's Unix socket, for processes of its host; empty: none
  std::string name;                             // the peer's address, for logs and errors
  std::vector<datapath::SocketAddress> proved;  // addresses that the peer has connected from

  bool is_authenticated() const noexcept { return guard != Guard::none; }

  // Control sockets.
  std::uint64_t current = 0;    // the control socket used for sending; 0: none
  std::int64_t attempt_ns = 0;  // earliest time of the next connection attempt
  // Number of sockets that now connect from our other addresses, to prove to the peer that these addresses are ours.
  std::uint32_t proofs = 0;
  std::int64_t proofs_until_ns = 0;  // until this time, new connections wait while `proofs` is not 0
  // The error and status of the last connection attempt; would_block: this attempt or another may still succeed.
  std::string last_error;
  Status last_status = Status::would_block;
  bool ended = false;    // the peer's host closed or reset the last control socket
  bool refused = false;  // the peer's host refuses new control sockets, or another process accepts them
  // Since when the session has no control socket; -1: it has one, or never had one.
  std::int64_t ended_ns = -1;

  // Dial ids of the queued open requests, and the number of open requests that wait for the peer's reply.
  std::deque<std::uint64_t> waiting;
  std::uint32_t opening = 0;

  // Dial ids of the peer's open requests that were confirmed or abandoned. A late duplicate of such a request is
  // ignored.
  std::deque<std::uint64_t> finished;

  // The examination of a peer process that became quiet.
  PeerHealth health;
  std::int64_t tick_ns = -1;  // time of the next tick of `health`; -1: the peer is not being examined
  std::uint64_t ping = 0;     // number of the last ping
  std::int64_t ping_ns = -1;  // when the last ping was sent; -1: it was answered, or none was sent
  std::int64_t pong_ns = -1;
  bool engines_turn = true;
  int well_ticks = 0;
  std::int64_t stall_ns = -1;              // since when the peer counts as stalled; -1: it does not
  std::int64_t stall_logged_ns = -1;       // when the stall was last logged
  std::int64_t dial_stall_logged_ns = -1;  // when it was last logged that dials wait for the stalled peer
  std::int64_t no_answer_logged_ns = -1;   // when it was last logged that dials wait for any answer of the peer
  std::int64_t quiet_logged_ns = -1;       // when it was last logged that no data arrives from the running peer

  std::int64_t busy_ns = 0;  // when the session last had a connection or a dial
  // When the session ends; -1: not scheduled. After the peer ended the session, its last data is read until then. A
  // session without a control socket and without a confirmed connection waits until then for a new control socket.
  std::int64_t ends_ns = -1;
};

}  // namespace weft::control
