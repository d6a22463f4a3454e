// The arena's state for each host, pair of hosts, flow and message. Private to the arena's files.
#pragma once

#include "native/sim/arena/arena.h"

namespace weft::sim {

// A message, from the posting of its receive until both ends are done with it.
struct Message {
  core::ReceiveTicket ticket;  // must be the first member: of() converts its address to a Message
  u32 flow = 0;
  i64 posted_ns = 0;  // when the send was posted
  bool sent = false, placed = false;

  static Message& of(void* cookie) noexcept { return *static_cast<Message*>(cookie); }
};

struct Arena::Flow {
  FlowPlan plan;
  u32 number = 0;
  u32 at_sender = 0, at_receiver = 0;  // index of the flow in the stacks of both hosts
  WireLedger ledger;
  // A ring of 2 * ahead messages, because receives are posted up to `ahead` messages earlier than sends.
  std::unique_ptr<Message[]> messages;
  std::vector<i64> times_ns;  // times of completed messages, from posting the send to the last byte
  u64 first = 0;              // number of the oldest message that is not done at both ends
  u64 posted_receives = 0, posted = 0, received = 0;
  i64 finished_ns = -1;
  i64 measured_from_ns = 0, measured_from_bytes = 0;
  i64 copies_beyond_window = 0;
  bool started = false, stopped = false;

  bool planned(u64 number_of_message) const noexcept { return plan.messages == 0 || number_of_message < plan.messages; }
  Message& at(u64 number_of_message) noexcept { return messages[number_of_message % (2 * u64{plan.ahead})]; }
};

// Two hosts with flows between them. These flows share the paths and one path policy.
struct Arena::Pair {
  u32 from = 0, to = 0;
  u32 at_sender = 0, at_receiver = 0;  // index of the peer in the stacks of both hosts
  std::vector<u32> flows;
};

struct Arena::Host {
  explicit Host(const core::StackConfig& config) : stack(config) {}
  core::Stack stack;
  bool sends = false;
  bool touched = false;
  std::vector<u32> flows;  // index of a flow in the stack -> its number in the arena
  std::vector<u32> peers;  // index of a peer in the stack -> its host number
  std::vector<u32> pairs;  // the pairs in which this host is the sender
};

}  // namespace weft::sim
