// The progress of a run's transfers: connection, dependencies and completion of each. Each field is written by one host
// only, so shards share it without a lock.
#pragma once

#include <memory>
#include <vector>

#include "native/core/receive_queue.h"
#include "native/sim/fabric/fabric_plan.h"
#include "native/sim/fabric/fabric_report.h"

namespace weft::sim {

// A connection: all transfers with the same from, to and stream. They are its messages, in order.
struct FabricConnection {
  u32 from = 0, to = 0, stream = 0;
  u32 first = 0, count = 0;            // its transfers: `count` entries of FabricWork::order, from index `first` on
  u32 at_sender = 0, at_receiver = 0;  // index of the flow in the stacks of both hosts
};

// A posted receive, until its message is complete.
struct FabricReceive {
  core::ReceiveTicket ticket;  // must be the first member: of() converts its address
  u32 transfer = 0;
  bool waits = false;  // posted and not complete, so the entry must not be reused

  static FabricReceive& of(void* cookie) noexcept { return *static_cast<FabricReceive*>(cookie); }
};

struct FabricWork {
  std::vector<FabricConnection> connections;  // sorted by from, to and stream
  std::vector<u32> order;                     // transfers, grouped by connection; local events are left out
  std::vector<u32> connection_of;             // transfer -> connection; not set for local events
  std::vector<u32> number_of;                 // transfer -> its message number in the connection
  std::vector<TransferReport> transfers;

  // Written by the host that sends the transfer; indexed by transfer.
  std::vector<u32> waits_for;     // number of unfinished dependencies
  std::vector<i64> may_start_ns;  // earliest start: the latest end of a dependency plus its delay
  // The transfers that wait for transfer t are next[next_begin[t]].after to next[next_begin[t + 1] - 1].after.
  std::vector<u32> next_begin;
  std::vector<DependencyPlan> next;

  // Indexed by connection. Numbers of messages whose sends were posted (posted) and have completed (through), written
  // by the sending host, as `oldest` is; and whose receives were posted (posted_receives) and have completed (placed),
  // written by the receiving host.
  std::vector<u32> posted, through;
  std::vector<u32> oldest;  // the oldest unfinished message; a later message may finish before it
  std::vector<u32> posted_receives, placed;
  std::vector<std::unique_ptr<FabricReceive[]>> receives;  // per connection, a ring of 2 * ahead receives

  void open(const FabricPlan& plan);
  std::size_t bytes_held() const noexcept;
};

}  // namespace weft::sim
