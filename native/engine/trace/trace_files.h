// Begins, fills, rotates and removes the files of a process's trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "native/telemetry/trace_layout.h"

namespace weft::engine {

struct TraceLimits {
  std::int64_t bytes_max = 1 << 30;    // limit for all files of the process; beyond it, the oldest are removed
  std::int64_t file_bytes = 16 << 20;  // a file ends at this size
  std::int64_t keep_ns = 0;            // files that ended longer ago are removed; 0: age does not matter
  std::uint32_t first_id = 0;          // where the ids of records begin; for tests
};

class TraceFiles {
 public:
  // `identity`: lines "name value" about the process.
  TraceFiles(std::string directory, const TraceLimits& limits, std::string identity);
  ~TraceFiles();
  TraceFiles(const TraceFiles&) = delete;
  TraceFiles& operator=(const TraceFiles&) = delete;

  // Begins the next file, after the current one has ended. False with `error` set if the file cannot be created. If
  // it is the first file and only its content cannot be written, it is left empty.
  bool begin(std::int64_t now_ns, std::string* error);
  bool open() const noexcept { return file_ >= 0; }
  // Whether the current file has reached its maximum size or age.
  bool full(std::int64_t now_ns) const noexcept;
  // Writes a block: `block` has room for a TraceBlockHeader, and then records. False, with `error` set, if the file
  // could not be written. The file then ends with the previous block; a file without a block is removed, unless it is
  // the first file.
  bool write(std::byte* block, std::size_t bytes, std::uint32_t ring, std::uint64_t dropped, std::string* error);
  void end() noexcept;
  // Whether the current file was removed, for example together with its directory.
  bool removed() const noexcept;
  // Closes a file that was removed.
  void abandon() noexcept;
  std::string path() const { return path_of(number_ - 1); }
  // Removes files beyond the limits.
  void prune(std::int64_t now_ns) noexcept;
  std::int64_t bytes() const noexcept { return total_bytes_; }

 private:
  struct Ended {
    std::string path;
    std::int64_t bytes, ended_ns;
  };
  std::string path_of(std::uint64_t file) const;

  const std::string directory_;
  const TraceLimits limits_;
  const std::string schema_, identity_;
  std::uint64_t process_ = 0;  // random, so that the file names of several hosts in one directory differ
  std::uint64_t number_ = 0, block_ = 0;
  int file_ = -1;
  bool empty_ = true;  // the file has no block
  std::int64_t file_bytes_ = 0, begun_ns_ = 0, total_bytes_ = 0;
  std::deque<Ended> ended_;
};

// Lines about this process: host, pid, job, rank, restart attempt, from its environment.
std::string trace_identity();

}  // namespace weft::engine
