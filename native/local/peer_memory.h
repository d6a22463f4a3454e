// Copies out of the memory of the peer process, which the kernel has identified (SO_PEERCRED), never the peer itself.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "native/local/segment.h"

namespace weft::local {

class PeerMemory {
 public:
  // `process`: as the kernel names it here; 0: it cannot be seen from this process.
  explicit PeerMemory(pid_t process) noexcept : process_(process) {}
  // Learns where the peer's mark is. True: this process may copy out of the peer.
  bool open(const Side& peer) noexcept;
  int error() const noexcept { return error_; }  // of the system call, if open() has returned false for its sake
  enum class Copied {
    whole,
    unreadable,  // with errno: the process has no such memory, or the kernel does not let this process read it
    gone         // the process has ended, or runs another program
  };
  // Copies bytes and the mark in one call of the kernel.
  Copied copy(void* to, std::uint64_t address, std::uint64_t bytes) const noexcept;

 private:
  const pid_t process_;
  std::uint64_t mark_address_ = 0;
  Mark mark_;
  int error_ = 0;
};

}  // namespace weft::local
