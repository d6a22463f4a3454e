// What callers' threads and the control thread share: a listener's queue, a dial's outcome.
// Private to the control plane; each guards itself with its own mutex.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "native/engine/connection.h"
#include "native/engine/policy_choice.h"
#include "native/engine/runtime.h"

namespace weft::engine {

struct ListenerState {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::uint16_t port = 0;  // its own; 0: none yet
  int descriptor = -1;     // its own socket; -1: it shares the device's
  Handle handle;
  PolicySet policies;  // what its connections use instead of the defaults
  std::mutex mutex;
  std::list<std::shared_ptr<ConnectionCore>> ready;  // a list takes no memory to be closed
  bool closed = false;
};

struct DialState {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::uint64_t listener = 0;  // 0: whoever listens on the port
  datapath::SocketAddress to;
  PolicySet policies;
  std::int64_t deadline_ns = 0;
  mutable std::mutex mutex;
  Status status = Status::would_block;
  std::string error;
  std::shared_ptr<ConnectionCore> connection;
  bool abandoned = false;
};

}  // namespace weft::engine
