// The transfers of a run as they happen: which connection carries each, what each waits for, when it was through.
// Each field has one writer, the host that it is about, so that shards share it without a lock.
#pragma once

#include <memory>
#include <vector>

#include "native/core/receive_queue.h"
#include "native/sim/fabric/fabric_plan.h"
#include "native/sim/fabric/fabric_report.h"

namespace weft::sim {

// One (from, to, stream). Its transfers in their order are its messages.
struct FabricConnection {
  u32 from = 0, to = 0, stream = 0;
  u32 first = 0, count = 0;            // in FabricWork::order
  u32 at_sender = 0, at_receiver = 0;  // index of the flow in their stacks
};

// A receive from its posting until it is placed.
struct FabricReceive {
  core::ReceiveTicket ticket;  // first: of() finds the receive by it
  u32 transfer = 0;
  bool waits = false;  // posted and not placed: nobody else's yet

  static FabricReceive& of(void* cookie) noexcept { return *static_cast<FabricReceive*>(cookie); }
};

struct FabricWork {
  std::vector<FabricConnection> connections;  // by from, to and stream
  std::vector<u32> order;                     // transfers, connection by connection
  std::vector<u32> connection_of;             // by transfer
  std::vector<u32> number_of;                 // by transfer: its message in its connection
  std::vector<TransferReport> transfers;

  // Written by a transfer's sender.
  std::vector<u32> waits_for;     // of what it depends on
  std::vector<i64> may_start_ns;  // the latest of what has happened, with its delay
  // What waits for a transfer: dependencies[next_begin[t]] up to next_begin[t + 1].
  std::vector<u32> next_begin;
  std::vector<DependencyPlan> next;

  // By connection. The first three belong to the sender, the others to the receiver.
  std::vector<u32> posted, through;
  std::vector<u32> oldest;  // message that is not through: messages overtake each other
  std::vector<u32> posted_receives, placed;
  std::vector<std::unique_ptr<FabricReceive[]>> receives;  // a ring of two rounds of what may be ahead

  void open(const FabricPlan& plan);
  std::size_t bytes_held() const noexcept;
};

}  // namespace weft::sim
