// A link of several paths between two stacks: delays, and loses, repeats, reorders, corrupts and marks by a seed.
// A named model of the network, for tests and fault schedules; holds no protocol state.
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

// Probabilities are per datagram. Times are virtual nanoseconds.
struct LinkFaults {
  double loss = 0, reorder = 0, duplicate = 0, corrupt = 0, mark = 0;
  double replay = 0;  // a copy of an old datagram comes again, up to `replay_ns_max` later
  double stray = 0;   // bytes that no stack sent come in
  i64 delay_ns = 20'000;
  i64 jitter_ns = 0;
  i64 reorder_ns_max = 500'000;
  i64 replay_ns_max = 50'000'000;
  i64 bytes_per_s = 0;  // of each path; 0: no queue
};

struct PathOutage {
  u8 path = 0;
  i64 from_ns = 0;
  i64 until_ns = 0;
};

// A path that swallows datagrams longer than this for a while, without a word.
struct SizeLimit {
  u8 path = 0;
  int from = -1;  // which end's datagrams; -1: both ends'
  u32 bytes_max = 0;
  i64 from_ns = 0;
  i64 until_ns = 0;
};

struct LinkCounters {
  i64 sent = 0, delivered = 0, lost = 0, reordered = 0, duplicated = 0, corrupted = 0, marked = 0, replayed = 0,
      strays = 0;
  i64 lost_data = 0;  // of `lost`: data segments
  i64 outage_drops = 0;
  i64 too_long = 0;
};

struct Arrival {
  i64 at_ns = 0;
  u64 order = 0;  // ties break by the order of sending
  int to = 0;     // which end
  u8 path = 0;
  bool congestion_experienced = false;
  bool corrupted = false;
  bool settled = false;  // its payload was read before its buffer was given back
  std::vector<u8> header;
  std::vector<u8> payload;
  core::Payload source;  // of the segment: where it was sent from, and where it is to be written to
};

class LossyLink {
 public:
  LossyLink(u64 seed, const LinkFaults& faults, std::vector<PathOutage> outages, std::vector<SizeLimit> limits = {});

  void send(i64 now_ns, int from, const core::TxBurst& burst);
  // What `from` has sent so far is not read from its buffers any more.
  void settle(int from);
  i64 next_ns() const noexcept { return queue_.empty() ? core::kNever : queue_.front()->at_ns; }
  // The next arrival that is due, or null.
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
  std::vector<std::unique_ptr<Arrival>> queue_;  // heap by (at_ns, order)
  std::array<std::array<i64, core::kMaxPaths>, 2> busy_until_ns_{};
  std::unique_ptr<Arrival> kept_;  // what a replay may bring back
  u64 order_ = 0;
};

}  // namespace weft::sim
