// A link of several paths between two stacks. It delays, loses, repeats, reorders, corrupts and marks datagrams at
// random, determined by a seed. It models the network in tests and fault schedules.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "native/core/random.h"
#include "native/wire/burst.h"

namespace weft::sim {

using core::i64;
using core::u16;
using core::u32;
using core::u64;
using core::u8;

// Faults of the link. Probabilities are per datagram; times are in virtual nanoseconds.
struct LinkFaults {
  double loss = 0, reorder = 0, duplicate = 0, corrupt = 0, mark = 0;
  double replay = 0;  // probability that an old datagram is delivered again, up to `replay_ns_max` later
  double stray = 0;   // probability that bytes arrive which no stack sent
  i64 delay_ns = 20'000;
  i64 jitter_ns = 0;
  i64 reorder_ns_max = 500'000;
  i64 replay_ns_max = 50'000'000;
  i64 bytes_per_s = 0;  // rate of each path; 0: no limit, and so no queue
};

struct PathOutage {
  u8 path = 0;
  i64 from_ns = 0;
  i64 until_ns = 0;
};

// For a while, a path silently drops datagrams longer than bytes_max.
struct SizeLimit {
  u8 path = 0;
  int from = -1;  // the end whose datagrams are dropped; -1: both
  u32 bytes_max = 0;
  i64 from_ns = 0;
  i64 until_ns = 0;
};

struct LinkCounters {
  i64 sent = 0, delivered = 0, lost = 0, reordered = 0, duplicated = 0, corrupted = 0, marked = 0, replayed = 0,
      strays = 0;
  i64 lost_data = 0;  // how many of the lost datagrams were data segments
  i64 outage_drops = 0;
  i64 too_long = 0;
};

struct Arrival {
  i64 at_ns = 0;
  u64 order = 0;  // orders arrivals at the same time by when they were sent
  int to = 0;     // the receiving end
  u8 path = 0;
  bool congestion_experienced = false;
  bool corrupted = false;
  bool settled = false;  // its buffer was returned to the caller, so the copy in `payload` is delivered
  std::vector<u8> header;
  std::vector<u8> payload;
  core::Payload source;  // where the segment's payload is and, for an RDMA write, where the payload must go
};

class LossyLink {
 public:
  LossyLink(u64 seed, const LinkFaults& faults, std::vector<PathOutage> outages, std::vector<SizeLimit> limits = {});

  void send(i64 now_ns, int from, const core::TxBurst& burst);
  // Marks the payload of all datagrams that `from` has sent as read already, so that its buffers are not read later.
  void settle(int from);
  i64 next_ns() const noexcept { return queue_.empty() ? core::kNever : queue_.front()->at_ns; }
  // Takes the next arrival that is due; null if there is none.
  std::unique_ptr<Arrival> poll(i64 now_ns);
  const LinkCounters& counters() const noexcept { return counters_; }

 private:
  void push(std::unique_ptr<Arrival> arrival);
  void offer(i64 now_ns, int from, u8 path, const u8* header, std::size_t header_bytes, core::Payload payload);
  void corrupt(Arrival* arrival);
  void maybe_replay(i64 now_ns, const Arrival& arrival);
  void maybe_stray(i64 now_ns, int to, u8 path);
  bool chance(double probability) { return probability > 0 && random_.uniform() < probability; }
  bool is_out(i64 now_ns, u8 path) const noexcept;
  bool is_too_long(i64 now_ns, int from, u8 path, std::size_t bytes) const noexcept;

  core::Random random_;
  LinkFaults faults_;
  std::vector<PathOutage> outages_;
  std::vector<SizeLimit> limits_;
  LinkCounters counters_;
  std::vector<std::unique_ptr<Arrival>> queue_;  // a heap ordered by (at_ns, order)
  std::array<std::array<i64, core::kMaxPaths>, 2> busy_until_ns_{};
  std::unique_ptr<Arrival> kept_;  // the datagram that the next replay delivers again
  u64 order_ = 0;
};

}  // namespace weft::sim
