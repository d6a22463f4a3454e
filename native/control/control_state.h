// State shared by callers' threads and the control loop: a listener's queue and the outcome of a dial. Private to the
// control plane; each struct has its own mutex.
#pragma once

#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "native/control/handle.h"
#include "native/engine/connection.h"
#include "native/engine/policies/policy_choice.h"

namespace weft::control {

// Whether two addresses are equal apart from their ports.
inline bool same_host(const datapath::SocketAddress& a, const datapath::SocketAddress& b) noexcept {
  if (a.is_v6() != b.is_v6()) return false;
  return a.is_v6() ? std::memcmp(&a.v6.sin6_addr, &b.v6.sin6_addr, 16) == 0
                   : a.v4.sin_addr.s_addr == b.v4.sin_addr.s_addr;
}

inline std::string target_of(const datapath::SocketAddress& address) {
  return address.text() + " port " + std::to_string(address.port());
}

struct ListenerState {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::uint16_t port = 0;  // the listener's own port; 0: none yet
  std::uint16_t handle_port = 0;
  int descriptor = -1;  // the listener's own socket; -1: it shares the device's socket
  bool open = false;    // accepts dials by host and port, whose process has not proved the handle's key
  Handle handle;
  engine::PolicySet policies;  // policies of the listener's connections, instead of the default ones
  std::mutex mutex;
  std::condition_variable changed;  // notified when a connection is ready and when the listener is closed
  std::list<std::shared_ptr<engine::ConnectionCore>> ready;  // a list, because close_listener() must not allocate
  bool closed = false;
};

struct DialState {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::uint64_t node = 0;      // the process to reach; 0: any process at the address `to`
  std::uint64_t listener = 0;  // the listener to reach; 0: the listener on the port of `to`
  datapath::SocketAddress to;
  HandleKey key{};  // key of the handle; all zero: the dial has no key
  engine::PolicySet policies;
  std::int64_t deadline_ns = 0;
  mutable std::mutex mutex;
  std::condition_variable changed;  // notified when `status` changes
  Status status = Status::would_block;
  // While the dial is in progress: its last error and that error's status; would_block: no error so far.
  std::string error;
  Status cause = Status::would_block;
  std::shared_ptr<engine::ConnectionCore> connection;
  bool abandoned = false;
  // Set if `error` says that the peer is stalled. This and the fields below are used by the control loop only.
  bool stall_told = false;
  std::int64_t begun_ns = 0;
  bool without_memory = false;  // the peer does not take shared memory for this connection
  bool retried = false;         // the session of this dial ended, and the dial was tried again in another session
};

}  // namespace weft::control
