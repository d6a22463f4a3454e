// Writes the trace of a process. Any thread puts records into a ring of its own; one thread writes the rings to files.
//
// After a thread's first record, putting one takes no lock, system call or allocation. Nothing waits for the disk: if a
// ring is full, or the files cannot be written, records are dropped and counted.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "native/engine/trace/cpu_wait.h"
#include "native/engine/trace/trace_files.h"
#include "native/engine/trace/trace_ring.h"
#include "native/telemetry/trace_layout.h"

namespace weft::engine {

struct TraceStats {
  std::int64_t records = 0;  // records put into rings
  std::int64_t dropped = 0;  // records lost because a ring, a file, or the table of texts or standing records was full
  std::int64_t bytes = 0;    // size of all trace files that exist
};

class TraceWriter {
 public:
  // Returns the writer of this process for the directory, which all users of the directory share. Makes the directory
  // if only its last component is missing. Null, with `error` set, if no file can be created in it.
  static std::shared_ptr<TraceWriter> open(const std::string& directory, const TraceLimits& limits, std::string* error);
  ~TraceWriter() = default;  // must follow close(); the deleter of the shared_ptr calls both
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Puts a record, from any thread. The records of a thread keep their order if it uses only one TraceWriter.
  template <class Record>
  void put(const Record& record) noexcept {
    put_bytes(&record, sizeof record);
  }
  // Returns the id of a text, for records that name the text; 0: there are too many texts. May be called from any
  // thread.
  std::uint32_t text(std::string_view text) noexcept;
  // Puts a standing record: every later file repeats it, until end() is called with a record that has the same id.
  template <class Record>
  void begin(const Record& record) noexcept {
    begin_bytes(record.head.id, &record, sizeof record);
  }
  template <class Record>
  void end(const Record& record) noexcept {
    put(record);
    end_standing(record.head.id);
  }
  void count_dropped() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }
  // Returns a new id for a record, never 0. Ids begin anew after 2^31 records.
  std::uint32_t next_id() noexcept;
  // Returns an id for a standing record. It differs from the ids of all standing records that have not ended, and from
  // all ids that next_id() returns.
  std::uint32_t next_standing_id() noexcept;

  TraceStats stats() const noexcept;
  // Sleeps until all records that this thread has put are written or dropped. False: the timeout has expired before
  // that.
  bool flush(std::int64_t timeout_ns) noexcept;
  // Tells the writing thread to write what the rings still hold, and then the record that the trace has ended. Later
  // records are dropped.
  void stop() noexcept;
  // Calls stop() and waits until the writing thread has ended. False: the thread has not ended within the timeout,
  // because a write is blocked. Nothing waits for the thread after that, and the writer must not be destroyed. Called
  // for all writers at the exit of the process.
  bool close(std::int64_t timeout_ns) noexcept;

 private:
  TraceWriter(std::string directory, const TraceLimits& limits);
  bool start(std::string* error);
  void put_bytes(const void* record, std::size_t bytes) noexcept;
  std::int64_t put_records() const noexcept;
  void begin_bytes(std::uint32_t id, const void* record, std::size_t bytes) noexcept;
  void end_standing(std::uint32_t id) noexcept;
  std::shared_ptr<TraceRing> take_ring() noexcept;
  void run() noexcept;
  void put_event(std::string_view what, std::int64_t now_ns, std::int64_t value, std::uint16_t status) noexcept;
  void notice_stall(std::int64_t due_ns, std::int64_t woke_ns) noexcept;
  void measure_cpu_wait(std::int64_t now_ns) noexcept;
  bool drain(bool last);
  bool write_block(std::uint32_t ring);
  bool append_block(std::uint32_t ring);
  void write_end();
  bool begin_segment(std::int64_t now_ns);
  void notice_removal(std::int64_t now_ns);
  void drop_block() noexcept;
  void append(const void* data, std::size_t bytes);
  static std::size_t count_records(const std::byte* records, std::size_t bytes) noexcept;

  // Whether this is a forked child of the process that opened the writer: it has no writing thread, and records
  // nothing.
  bool in_child() const noexcept;

  const std::string directory_;
  const pid_t pid_;
  const std::uint64_t serial_;  // unique, because a later writer may have the same address
  TraceFiles files_;            // used by the writing thread only, once it runs
  std::atomic<std::int64_t> dropped_{0}, bytes_{0};
  std::atomic<std::uint32_t> ids_;

  mutable std::mutex mutex_;  // protects the members from here to stopping_
  std::vector<std::shared_ptr<TraceRing>> rings_;
  // Every file begins with these: all texts, and the standing records that have not ended.
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::size_t text_bytes_ = 0;
  std::map<std::uint32_t, std::vector<std::byte>> standing_;
  std::uint32_t standing_ids_;
  std::vector<std::uint32_t> ended_;  // ids of ended standing records; files repeat these until rings are read again
  std::vector<std::byte> fresh_;      // texts and standing records that the current file does not have yet
  std::condition_variable wake_, drained_;
  std::uint64_t rounds_ = 0;  // number of completed drain() calls
  bool stopping_ = false, ended_writing_ = false;

  // The members from here to removed_ are used by the writing thread only.
  std::vector<std::byte> block_;
  std::vector<std::shared_ptr<TraceRing>> draining_;
  std::vector<std::vector<std::byte>> taken_;  // indexed by ring: the bytes taken from it
  std::vector<std::uint32_t> ending_;
  std::int64_t retry_ns_ = 0, warned_ns_ = 0, look_ns_ = 0;
  CpuWait cpu_wait_;
  std::int64_t cpu_read_ns_ = 0;  // when cpu_wait_ was read last; 0: not yet
  bool removed_ = false;          // the last file was removed, and none was begun since
  std::mutex closing_;            // protects the members after it
  bool left_ = false;             // close() timed out and left the writing thread running
  std::thread thread_;
};

}  // namespace weft::engine
