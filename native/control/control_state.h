// What callers' threads and the control thread share: a listener's queue, a dial's outcome.
// Private to the control plane; each guards itself with its own mutex.
#pragma once

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "native/control/handle.h"
#include "native/engine/connection.h"
#include "native/engine/policies/policy_choice.h"

namespace weft::control {

// Without their ports.
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
  std::uint16_t port = 0;  // its own; 0: none yet
  int descriptor = -1;     // its own socket; -1: it shares the device's
  Handle handle;
  engine::PolicySet policies;  // what its connections use instead of the defaults
  std::mutex mutex;
  std::list<std::shared_ptr<engine::ConnectionCore>> ready;  // a list takes no memory to be closed
  bool closed = false;
};

struct DialState {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::uint64_t node = 0;      // the process that is meant; 0: whichever has the address
  std::uint64_t listener = 0;  // 0: whoever listens on the port
  datapath::SocketAddress to;
  engine::PolicySet policies;
  std::int64_t deadline_ns = 0;
  mutable std::mutex mutex;
  Status status = Status::would_block;
  // Before it is through: why it is not, and as what that counts; would_block: nothing is known to be wrong.
  std::string error;
  Status cause = Status::would_block;
  std::shared_ptr<engine::ConnectionCore> connection;
  bool abandoned = false;
  bool stall_told = false;  // its error says that the peer is stalled; of the control thread, as the rest below
  std::int64_t begun_ns = 0;
  bool retried = false;  // its session died before it was through, and another was tried
};

}  // namespace weft::control
