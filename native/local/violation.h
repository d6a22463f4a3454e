// What a peer did in shared memory that the protocol forbids, and the line in the log about it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace weft::local {

// A value that the peer wrote and that cannot be, or memory that it lent and that cannot be read.
struct Violation {
  const char* what = "";
  std::uint64_t value = 0;            // lent memory: its address
  std::uint64_t least = 0, most = 0;  // what the value can be
  std::uint64_t step = 1;             // possible values are this far apart
  std::uint64_t lent_bytes = 0;       // lent memory: how much of it is needed
  int error = 0;                      // lent memory: why it cannot be read (errno)

  std::string text() const;
};

// Logs that a connection ends because its peer broke the rules; at most a few lines of all connections in ten seconds.
// `peer`: its address; `process`: 0 if it cannot be seen from here.
void log_violation(const std::string& peer, pid_t process, const Violation& violation) noexcept;

}  // namespace weft::local
