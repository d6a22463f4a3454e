// The transfers of a run in progress: connection, dependencies and completion of each. Each field is written by one
// host only, so shards share it without a lock.
#pragma once

#include <memory>
#include <vector>

#include "native/core/receive_queue.h"
#include "native/sim/fabric/fabric_plan.h"
#include "native/sim/fabric/fabric_report.h"

namespace weft::sim {

// A connection: one (from, to, stream). Its transfers in order are its messages.
struct FabricConnection {
  u32 from = 0, to = 0, stream = 0;
  u32 first = 0, count = 0;            // in FabricWork::order
  u32 at_sender = 0, at_receiver = 0;  // index of the flow in their stacks
};

// A receive from its posting until it is placed.
struct FabricReceive {
  core::ReceiveTicket ticket;  // first: of() finds the receive by it
  u32 transfer = 0;
  bool waits = false;  // posted and not placed, so it must not be reused

  static FabricReceive& of(void* cookie) noexcept { return *static_cast<FabricReceive*>(cookie); }
};

struct FabricWork {
  std::vector<FabricConnection> connections;  // sorted by from, to and stream
  std::vector<u32> order;                     // transfers grouped by connection
  std::vector<u32> connection_of;             // by transfer
  std::vector<u32> number_of;                 // by transfer: its message number in the connection
  std::vector<TransferReport> transfers;

  // Written by the transfer's sender.
  std::vector<u32> waits_for;     // number of unfinished dependencies
  std::vector<i64> may_start_ns;  // latest end of a dependency, with its delay
  // The dependents of transfer t are next[next_begin[t]] to next[next_begin[t + 1] - 1].
  std::vector<u32> next_begin;
  std::vector<DependencyPlan> next;

  // By connection. The first three are the sender's, the others the receiver's.
  std::vector<u32> posted, through;
  std::vector<u32> oldest;  // oldest unfinished message; messages may overtake each other
  std::vector<u32> posted_receives, placed;
  std::vector<std::unique_ptr<FabricReceive[]>> receives;  // a ring of 2 * ahead receives

  void open(const FabricPlan& plan);
  std::size_t bytes_held() const noexcept;
};

}  // namespace weft::sim
