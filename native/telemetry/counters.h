// The table of counters: name, unit, kind and meaning of each. Structs, merging, bindings, the type stub and
// docs/COUNTERS.md are generated from it: a new counter is one row in this file and one increment where the event
// happens.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace weft::telemetry {

// How the values of a counter from several flows, paths or engines are merged.
enum class Kind : std::uint8_t {
  sum,        // only grows; values are added
  gauge,      // a level that rises and falls; values are added
  maximum,    // the largest value so far; of two values, the larger is kept
  histogram,  // number of values by size; buckets are added
};

// Columns of each row: name, unit, kind, sentence.
#define WEFT_PROCESS_COUNTER_TABLE(X)                                                            \
  X(strangers_refused, count, sum, "control connections refused, evicted or timed out")          \
  X(peers_stalled, count, sum, "times that a peer process stopped answering while its host did") \
  X(peers_rejoined, count, sum, "lost control sockets that were set up again")                   \
  X(strangers_bytes, bytes, gauge, "memory charged to peers that are not authenticated")         \
  X(rows_refused, count, sum, "peers and flows that found the telemetry page full")

#define WEFT_ENGINE_COUNTER_TABLE(X)                                                      \
  X(datagrams_sent, datagrams, sum, "datagrams handed to the kernel or the NIC")          \
  X(datagrams_received, datagrams, sum, "datagrams taken from the kernel or the NIC")     \
  X(calls, count, sum, "system calls and doorbells that moved datagrams")                 \
  X(bypass_sent, datagrams, sum, "datagrams sent past the kernel's stack, by AF_XDP")     \
  X(bypass_received, datagrams, sum, "datagrams received past the kernel's stack")        \
  X(batch_datagrams, datagrams, histogram, "datagrams sent by one call or doorbell")      \
  X(malformed, datagrams, sum, "datagrams that no decoder accepted")                      \
  X(bad_magic, datagrams, sum, "malformed datagrams without weft's magic number")         \
  X(stray, datagrams, sum, "datagrams of no known peer, or with a wrong token")           \
  X(bad_crc, datagrams, sum, "datagrams whose header or payload checksum failed")         \
  X(bad_version, datagrams, sum, "datagrams of another protocol version")                 \
  X(host_drops, datagrams, sum, "datagrams dropped by this host's own socket buffers")    \
  X(injected_loss, datagrams, sum, "datagrams dropped by WEFT_FAULT=loss")                \
  X(injected_loss_data, datagrams, sum, "data segments dropped by WEFT_FAULT=loss")       \
  X(injected_reorder, datagrams, sum, "datagrams held back by WEFT_FAULT=reorder")        \
  X(injected_duplicate, datagrams, sum, "datagrams doubled by WEFT_FAULT=duplicate")      \
  X(injected_corrupt, datagrams, sum, "datagrams damaged by WEFT_FAULT=corrupt")          \
  X(injected_corrupt_data, datagrams, sum, "data segments damaged by WEFT_FAULT=corrupt") \
  X(paths_broken, count, sum, "queue pairs that failed; each is one end of a path")       \
  X(paths_reestablished, count, sum, "paths that work again after an error")              \
  X(reestablish_ns_max, ns, maximum, "the longest time that a path took to work again")   \
  X(foreign_completions, count, sum, "completions for no work request of this process")   \
  X(payload_copied_bytes, bytes, sum, "payload that was copied into RDMA slots")          \
  X(payload_written_bytes, bytes, sum, "payload written straight into its receive")       \
  X(memory_by_dmabuf, count, sum, "registrations of GPU memory by its dma-buf")           \
  X(memory_refused, count, sum, "registrations that a NIC refused: bytes copied")         \
  X(windows_refused, count, sum, "receives without a memory window: through slots")       \
  X(wakeups, count, sum, "times an engine woke from sleep")                               \
  X(loops, count, sum, "rounds of the engines' loops")                                    \
  X(events_policy_failed, count, sum, "policies that failed; 'fixed' replaced them")      \
  X(results_corrected, count, sum, "answers of policies out of range: corrected")

#define WEFT_PEER_COUNTER_TABLE(X)                                             \
  X(flows, count, gauge, "flows that are open with this peer")                 \
  X(keepalives_sent, datagrams, sum, "probes sent because the peer was quiet") \
  X(probes_answered, datagrams, sum, "probes of the peer that were answered")

#define WEFT_PATH_COUNTER_TABLE(X)                                                \
  X(bytes_sent, bytes, sum, "payload bytes sent on this path, resends included")  \
  X(segments_sent, segments, sum, "segments sent on this path, resends included") \
  X(segments_lost, segments, sum, "segments declared lost on this path")          \
  X(rtt_ns, ns, maximum, "smoothed round-trip time, 0 before the first sample")   \
  X(usable, flag, gauge, "1 while the path may be chosen, 0 while it is probed")  \
  X(downs, count, sum, "times that the path stopped being chosen")                \
  X(probes_sent, datagrams, sum, "probes sent to measure the path or to find it alive")

// Counters of a flow. Those of a connection are merged from its flows.
#define WEFT_FLOW_COUNTER_TABLE(X)                                                           \
  X(bytes_sent, bytes, sum, "bytes of completed sends")                                      \
  X(bytes_received, bytes, sum, "bytes of completed receives")                               \
  X(segments_sent, segments, sum, "segments sent, resends included")                         \
  X(segments_received, segments, sum, "segments that brought new bytes")                     \
  X(segments_resent, segments, sum, "segments sent again")                                   \
  X(segments_lost, segments, sum, "segments declared lost by the loss policy or a timeout")  \
  X(segments_duplicate, segments, sum, "segments received that were held already")           \
  X(segments_refused, segments, sum, "segments received that no message could take")         \
  X(segments_trimmed, segments, sum, "segments that the receiver got without their payload") \
  X(segments_held, segments, sum, "segments that the receiver had no room for")              \
  X(acks_sent, datagrams, sum, "acknowledgments sent")                                       \
  X(acks_received, datagrams, sum, "acknowledgments received")                               \
  X(spurious_resends, segments, sum, "segments sent again although the first copy arrived")  \
  X(window_bytes, bytes, gauge, "window in force")                                           \
  X(inflight_bytes, bytes, gauge, "sent, and neither acknowledged nor judged lost")

// A counter that one thread writes (but for add_shared()), and that any thread or other process can read.
class Cell {
 public:
  operator std::int64_t() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }  // NOLINT: reads as a number
  void set(std::int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  void operator+=(std::int64_t more) noexcept { set(*this + more); }
  void operator++() noexcept { *this += 1; }
  // For a counter that several threads write.
  void add_shared(std::int64_t more) noexcept { value_.fetch_add(more, std::memory_order_relaxed); }
  void raise(std::int64_t value) noexcept {
    if (value > *this) set(value);
  }

 private:
  std::atomic<std::int64_t> value_{0};
};
static_assert(sizeof(Cell) == sizeof(std::int64_t) && std::atomic<std::int64_t>::is_always_lock_free);

// Counts values by powers of two: bucket 0 counts values below 1, bucket i counts values from 2^(i-1) to 2^i - 1, and
// the last bucket also counts all larger values.
inline constexpr std::size_t kHistogramBuckets = 40;
template <class Value>
struct Histogram {
  Value buckets[kHistogramBuckets]{};

  void record(std::int64_t value) noexcept {
    const auto width = value < 1 ? std::size_t{0} : static_cast<std::size_t>(std::bit_width(std::uint64_t(value)));
    buckets[std::min(width, kHistogramBuckets - 1)] += 1;
  }
};

template <Kind kind, class Value>
using CounterField = std::conditional_t<kind == Kind::histogram, Histogram<Value>, Value>;

inline void copy_value(const Cell& cell, std::int64_t* copy) noexcept { *copy = cell; }
inline void copy_value(const Histogram<Cell>& cells, Histogram<std::int64_t>* copy) noexcept {
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) copy->buckets[i] = cells.buckets[i];
}
inline void merge_value(Kind kind, std::int64_t one, std::int64_t* total) noexcept {
  *total = kind == Kind::maximum ? std::max(*total, one) : *total + one;
}
inline void merge_value(Kind, const Histogram<std::int64_t>& one, Histogram<std::int64_t>* total) noexcept {
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) total->buckets[i] += one.buckets[i];
}

// Defines for each scope: `Cells`, the live counters; `Counters`, a copy of their values; values(), which makes the
// copy; and merge(), which merges copies.
#define WEFT_COUNTER_FIELD(name, unit, kind, sentence) CounterField<Kind::kind, Value> name{};
#define WEFT_COUNTER_COPY(name, unit, kind, sentence) copy_value(cells.name, &copy.name);
#define WEFT_COUNTER_MERGE(name, unit, kind, sentence) merge_value(Kind::kind, one.name, &total->name);
#define WEFT_COUNTER_SCOPE(Scope, TABLE)                              \
  template <class Value>                                              \
  struct Scope##Row {                                                 \
    TABLE(WEFT_COUNTER_FIELD)                                         \
  };                                                                  \
  using Scope##Cells = Scope##Row<Cell>;                              \
  using Scope##Counters = Scope##Row<std::int64_t>;                   \
  inline Scope##Counters values(const Scope##Cells& cells) noexcept { \
    Scope##Counters copy;                                             \
    TABLE(WEFT_COUNTER_COPY)                                          \
    return copy;                                                      \
  }                                                                   \
  inline void merge(const Scope##Counters& one, Scope##Counters* total) noexcept { TABLE(WEFT_COUNTER_MERGE) }
WEFT_COUNTER_SCOPE(Process, WEFT_PROCESS_COUNTER_TABLE)
WEFT_COUNTER_SCOPE(Engine, WEFT_ENGINE_COUNTER_TABLE)
WEFT_COUNTER_SCOPE(Peer, WEFT_PEER_COUNTER_TABLE)
WEFT_COUNTER_SCOPE(Path, WEFT_PATH_COUNTER_TABLE)
WEFT_COUNTER_SCOPE(Flow, WEFT_FLOW_COUNTER_TABLE)
#undef WEFT_COUNTER_SCOPE
#undef WEFT_COUNTER_MERGE
#undef WEFT_COUNTER_COPY
#undef WEFT_COUNTER_FIELD

// Counters of all engines of an endpoint, and of its process.
struct EndpointCounters : EngineCounters, ProcessCounters {};

// Counters of all flows of a connection, and of the paths that they share with other connections to the same peer.
struct ConnectionCounters : FlowCounters {
  std::vector<PathCounters> paths;
};

inline void merge(const ConnectionCounters& one, ConnectionCounters* total) {
  merge(static_cast<const FlowCounters&>(one), static_cast<FlowCounters*>(total));
  if (total->paths.size() < one.paths.size()) total->paths.resize(one.paths.size());
  for (std::size_t i = 0; i < one.paths.size(); ++i) merge(one.paths[i], &total->paths[i]);
}

}  // namespace weft::telemetry
