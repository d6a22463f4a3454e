// The counters of a connection and of the engines, each declared once: structs and bindings come from these tables.
// Counts nothing itself, and knows neither threads nor clocks.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

#define WEFT_PATH_COUNTER_TABLE(X)                                   \
  X(bytes_sent, "payload bytes sent on this path, resends included") \
  X(segments_sent, "segments sent on this path, resends included")   \
  X(segments_lost, "segments declared lost on this path")            \
  X(rtt_ns, "smoothed round-trip time, 0 before the first sample")   \
  X(usable, "1 while the path may be chosen, 0 while it is probed")

#define WEFT_CONNECTION_COUNTER_TABLE(X)                                     \
  X(bytes_sent, "bytes of completed sends")                                  \
  X(bytes_received, "bytes of completed receives")                           \
  X(segments_sent, "segments sent for the first time")                       \
  X(segments_received, "segments that brought new bytes")                    \
  X(segments_resent, "segments sent again")                                  \
  X(segments_lost, "segments declared lost by the loss policy or a timeout") \
  X(segments_duplicate, "segments received that were held already")          \
  X(acks_sent, "acknowledgments sent")                                       \
  X(acks_received, "acknowledgments received")                               \
  X(spurious_resends, "segments sent again although the first copy arrived") \
  X(window_bytes, "window in force, of all flows together")                  \
  X(inflight_bytes, "sent, and neither acknowledged nor judged lost")

#define WEFT_ENGINE_COUNTER_TABLE(X)                                        \
  X(datagrams_sent, "datagrams handed to the kernel or the NIC")            \
  X(datagrams_received, "datagrams taken from the kernel or the NIC")       \
  X(malformed, "datagrams that no decoder accepted")                        \
  X(stray, "datagrams of no known peer, or with a wrong token")             \
  X(bad_crc, "datagrams whose header or payload checksum failed")           \
  X(bad_version, "datagrams of another protocol version")                   \
  X(host_drops, "datagrams dropped by this host's own socket buffers")      \
  X(injected_loss, "datagrams dropped by WEFT_FAULT_LOSS")                  \
  X(injected_loss_data, "of these, data segments")                          \
  X(injected_reorder, "datagrams held back by WEFT_FAULT_REORDER")          \
  X(injected_duplicate, "datagrams doubled by WEFT_FAULT_DUPLICATE")        \
  X(injected_corrupt, "datagrams damaged by WEFT_FAULT_CORRUPT")            \
  X(injected_corrupt_data, "of these, data segments")                       \
  X(paths_broken, "ends of paths that failed: queue pairs in error")        \
  X(paths_mended, "of these, those that work again")                        \
  X(mend_ns_max, "the longest that one of these was out of work")           \
  X(foreign_completions, "completions that name no slot of ours")           \
  X(payload_copied_bytes, "payload that was copied into RDMA slots")        \
  X(payload_written_bytes, "payload written straight into its receive")     \
  X(memory_by_dmabuf, "registrations of GPU memory by its dma-buf")         \
  X(memory_refused, "registrations that a NIC refused: bytes copied")       \
  X(windows_refused, "receives without a memory window: through slots")     \
  X(wakeups, "times an engine woke from sleep")                             \
  X(loops, "rounds of the engines' loops")                                  \
  X(events_policy_failed, "policies replaced by fixed after an error")      \
  X(results_corrected, "answers of policies out of range: corrected")       \
  X(strangers_refused, "control connections refused, evicted or timed out") \
  X(peers_stalled, "times that a peer process was found not to run")        \
  X(peers_rejoined, "lost control sockets that were set up again")

#define WEFT_COUNTER_FIELD(name, sentence) std::int64_t name = 0;
struct PathCounters {
  WEFT_PATH_COUNTER_TABLE(WEFT_COUNTER_FIELD)
};
struct ConnectionCounters {
  WEFT_CONNECTION_COUNTER_TABLE(WEFT_COUNTER_FIELD)
  std::vector<PathCounters> paths;
};
struct EngineCounters {
  WEFT_ENGINE_COUNTER_TABLE(WEFT_COUNTER_FIELD)
};
#undef WEFT_COUNTER_FIELD

}  // namespace weft::engine
