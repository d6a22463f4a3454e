// Layout of the telemetry page: a file in shared memory with a process's counters, which other processes can read.
//
// It has a header, a text that describes the fields of every row, and then one section of rows for each scope. A reader
// only needs to know the header's layout. docs/LIVE.md describes both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/telemetry/counters.h"

namespace weft::telemetry {

inline constexpr char kPageMagic[8] = {'w', 'e', 'f', 't', 'p', 'a', 'g', 'e'};
inline constexpr std::uint32_t kPageVersion = 1;  // header layout; fields of rows can change within a version
inline constexpr std::size_t kAddressBytes = 64;
inline constexpr std::size_t kLineBytes = 64;  // size of a cache line; rows of different writers share no line

// State fields of a row, besides its counters: name, unit, sentence. Times are of CLOCK_MONOTONIC.
#define WEFT_PROCESS_STATE_TABLE(X) X(engines, count, "engines of the process")

#define WEFT_ENGINE_STATE_TABLE(X)                                           \
  X(turn_ns, ns, "when the engine's thread last began a round")              \
  X(sleeping, flag, "1 while the thread sleeps until there is work to do")   \
  X(published_ns, ns, "when the states of its peers and flows were written") \
  X(open_flows, count, "flows of connections that the engine has")

#define WEFT_PEER_STATE_TABLE(X)                                            \
  X(engine, index, "engine of this process that the peer talks to")         \
  X(first_path, index, "first row of the peer's paths in the section path") \
  X(paths, count, "number of the peer's rows in the section path")          \
  X(dead, flag, "1 once the peer was found dead or given up")               \
  X(waited_for, flag, "1 while a flow waits for the peer")                  \
  X(heard_ns, ns, "when the peer was last heard, -1: never")

#define WEFT_FLOW_STATE_TABLE(X)                                                                  \
  X(connection, id, "connection that the flow is part of")                                        \
  X(engine, index, "engine that the flow lives on")                                               \
  X(peer, index, "row of its peer in the section peer, -1: the peer has none")                    \
  X(stripe, index, "number of the flow in its connection")                                        \
  X(stripes, count, "flows of its connection")                                                    \
  X(phase, phase, "0 open, 1 failed, 2 telling the peer that it closes, 3 closed")                \
  X(sends, messages, "sends that are not acknowledged in full")                                   \
  X(unsent_bytes, bytes, "bytes of those sends that were not sent yet")                           \
  X(receives, messages, "at the first flow of a connection: its receives that wait for the peer") \
  X(progress_ns, ns, "when the flow last made progress, 0: never")                                \
  X(active_ns, ns, "time of the flow's last packet, send or receive")

// Counts uses of a row. It is incremented when the row is taken and when it is released, so it is odd while the row is
// in use. A reader accepts a row if this number is odd, and is the same before and after the reader reads the rest.
class Generation {
 public:
  bool in_use() const noexcept { return (value_.load(std::memory_order_relaxed) & 1) != 0; }
  void next() noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // later writes become visible after the increment
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
// A path's row has counters only and no generation of its own, because the core keeps paths in an array. It is in use
// while its peer's row is in use.
static_assert(sizeof(PathCells) == 56, "a peer has path rows in multiples of 8, which fill whole cache lines");
inline constexpr std::uint32_t kPathsStep = 8;

struct PageSection {
  char name[16];
  std::uint64_t offset;
  std::uint32_t row_bytes;
  std::uint32_t rows;
};

struct PageHeader {
  char magic[8];  // written last, when the page is complete
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t file_bytes;
  std::uint32_t pid;
  std::uint32_t sections_count;
  // When the process started, as in field 22 of /proc/PID/stat; tells apart processes that had the same pid.
  std::uint64_t start_ticks;
  std::uint64_t pid_namespace;  // inode of /proc/PID/ns/pid, the namespace of `pid`
  std::int64_t monotonic_ns;    // when the page was created, by CLOCK_MONOTONIC
  std::int64_t realtime_ns;     // when the page was created, by CLOCK_REALTIME
  std::uint64_t schema_offset;
  std::uint64_t schema_bytes;
  PageSection sections[5];
  char boot_id[40];
};
static_assert(sizeof(PageHeader) == 280 && offsetof(PageHeader, sections) == 80);

// Text that describes the fields of every row, one line per field: section, name, type (i64, i64xN or textN), unit,
// kind, offset in the row. The kind is a counter's kind, or `state`.
std::string page_schema();

}  // namespace weft::telemetry
