// Layout of the telemetry page: the file in shared memory that a process counts in, so that others can read it.
//
// A header, a text that describes the fields of every row, then one section of rows for each scope. A reader needs the
// header's layout and nothing else. docs/TELEMETRY.md describes both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/telemetry/counters.h"

namespace weft::telemetry {

inline constexpr char kPageMagic[8] = {'w', 'e', 'f', 't', 'p', 'a', 'g', 'e'};
inline constexpr std::uint32_t kPageVersion = 1;  // of the header; fields of rows can change without a new version
inline constexpr std::size_t kAddressBytes = 64;
inline constexpr std::size_t kLineBytes = 64;  // a cache line; rows of different writers share none

// State fields of a row, beside its counters: name, unit, sentence. Times are CLOCK_MONOTONIC.
#define WEFT_PROCESS_STATE_TABLE(X) X(engines, count, "engines of the process")

#define WEFT_ENGINE_STATE_TABLE(X)                                           \
  X(turn_ns, ns, "when the engine's thread last began a round")              \
  X(sleeping, flag, "1 while the thread sleeps until there is work to do")   \
  X(published_ns, ns, "when the states of its peers and flows were written") \
  X(open_flows, count, "flows of connections that the engine has")

#define WEFT_PEER_STATE_TABLE(X)                                    \
  X(engine, index, "engine of this process that the peer talks to") \
  X(first_path, index, "its first row in the section path")         \
  X(paths, count, "number of its rows there")                       \
  X(dead, flag, "1 once the peer was found dead or given up")       \
  X(waited_for, flag, "1 while a flow waits for the peer")          \
  X(heard_ns, ns, "when the peer was last heard, -1: never")

#define WEFT_FLOW_STATE_TABLE(X)                                                              \
  X(connection, id, "connection that the flow is part of")                                    \
  X(engine, index, "engine that the flow lives on")                                           \
  X(peer, index, "row of its peer in the section peer, -1: the peer has none")                \
  X(stripe, index, "number of the flow in its connection")                                    \
  X(stripes, count, "flows of its connection")                                                \
  X(phase, phase, "0 open, 1 failed, 2 telling the peer that it closes, 3 closed")            \
  X(sends, messages, "sends that are not acknowledged in full")                               \
  X(unsent_bytes, bytes, "bytes of these that were not sent yet")                             \
  X(receives, messages, "receives that wait for a message whose first stripe is this flow's") \
  X(progress_ns, ns, "when the flow last made progress, 0: never")                            \
  X(active_ns, ns, "when the flow last had a packet or a post")

// Incremented when the row is taken and when it is released, so it is odd while the row is in use. A reader accepts a
// row if this number is odd and the same before and after it reads the rest.
class Generation {
 public:
  bool in_use() const noexcept { return (value_.load(std::memory_order_relaxed) & 1) != 0; }
  void next() noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // later writes are not visible earlier
  }

 private:
  std::atomic<std::uint64_t> value_{0};
};

#define WEFT_STATE_FIELD(name, unit, sentence) Cell name;
struct alignas(kLineBytes) ProcessPageRow {
  Generation generation;
  WEFT_PROCESS_STATE_TABLE(WEFT_STATE_FIELD)
  ProcessCells counters;
};
struct alignas(kLineBytes) EnginePageRow {
  Generation generation;
  WEFT_ENGINE_STATE_TABLE(WEFT_STATE_FIELD)
  EngineCells counters;
};
struct alignas(kLineBytes) PeerPageRow {
  Generation generation;
  char address[kAddressBytes];  // truncated if longer; zero-terminated if shorter
  WEFT_PEER_STATE_TABLE(WEFT_STATE_FIELD)
  PeerCells counters;
};
struct alignas(kLineBytes) FlowPageRow {
  Generation generation;
  WEFT_FLOW_STATE_TABLE(WEFT_STATE_FIELD)
  FlowCells counters;
};
#undef WEFT_STATE_FIELD
// A path's row consists of counters only, because the core has them in an array. It is in use while its peer's row is.
static_assert(sizeof(PathCells) == 56, "paths of a row are counted in multiples of 8, which fill cache lines");
inline constexpr std::uint32_t kPathsStep = 8;

struct PageSection {
  char name[16];
  std::uint64_t offset;
  std::uint32_t row_bytes;
  std::uint32_t rows;
};

struct PageHeader {
  char magic[8];  // written last
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t file_bytes;
  std::uint32_t pid;
  std::uint32_t sections_count;
  std::uint64_t start_ticks;    // of the process, as in field 22 of /proc/PID/stat; distinguishes reused pids
  std::uint64_t pid_namespace;  // inode of /proc/PID/ns/pid, the namespace of `pid`
  std::int64_t monotonic_ns;    // the page's creation by CLOCK_MONOTONIC
  std::int64_t realtime_ns;     // the same moment by CLOCK_REALTIME
  std::uint64_t schema_offset;
  std::uint64_t schema_bytes;
  PageSection sections[5];
  char boot_id[40];
};
static_assert(sizeof(PageHeader) == 280 && offsetof(PageHeader, sections) == 80);

// Describes the fields of every row, one line each: section, name, type (i64, i64xN or textN), unit, kind, offset in
// the row. The kind is that of a counter, or `state`.
std::string page_schema();

}  // namespace weft::telemetry
