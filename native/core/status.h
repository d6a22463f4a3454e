// The table of all results of an operation: name, code and text. Exceptions, errno values and NCCL results are derived
// from it.
#pragma once

#include <cstdint>

namespace weft {

#define WEFT_STATUS_TABLE(X)                                                                                       \
  X(ok, 0, "done")                                                                                                 \
  X(would_block, 1, "the operation would block: try again later")                                                  \
  X(invalid_argument, 2, "an argument is out of range or of the wrong kind")                                       \
  X(message_too_long, 3, "the message is longer than the receive posted for it")                                   \
  X(connection_closed, 4, "the connection was closed")                                                             \
  X(peer_dead, 5, "the peer process is gone")                                                                      \
  X(peer_silent, 6,                                                                                                \
    "the peer process answers, but no data path did for WEFT_PEER_TIMEOUT=silence; weft doctor --peer tests them") \
  X(refused, 7, "the peer refused the connection")                                                                 \
  X(version_mismatch, 8, "the peer speaks another version of the protocol")                                        \
  X(authentication_failed, 9, "the peer does not hold the same secret")                                            \
  X(address_unavailable, 10, "the address, port or interface cannot be used")                                      \
  X(out_of_memory, 11, "out of memory or over a configured limit")                                                 \
  X(out_of_descriptors, 12, "out of file descriptors")                                                             \
  X(system_error, 13, "a system call failed")                                                                      \
  X(cancelled, 14, "cancelled by the caller")                                                                      \
  X(timed_out, 15, "the operation did not finish within the caller's timeout")                                     \
  X(forked_child, 16, "used in a forked child process; only its parent can use the transport")                     \
  X(internal_error, 17, "a defect in weft: please report it")                                                      \
  X(device_unavailable, 18, "this host has no such GPU, or no GPU driver")                                         \
  X(device_error, 19, "a call to the GPU's driver failed")                                                         \
  X(no_progress, 20, "the network carries too little for the connection to make progress")                         \
  X(peer_stalled, 21, "the peer process was stalled (not running) for longer than WEFT_PEER_TIMEOUT=stall")

enum class Status : std::int32_t {
#define WEFT_STATUS_ENUM(name, code, text) name = code,
  WEFT_STATUS_TABLE(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
};

// Whether a number, such as one from a packet, is the code of a status.
constexpr bool is_status(std::uint64_t code) noexcept {
#define WEFT_STATUS_KNOWN(name, number, text) \
  if (code == number) return true;
  WEFT_STATUS_TABLE(WEFT_STATUS_KNOWN)
#undef WEFT_STATUS_KNOWN
  return false;
}

constexpr const char* status_name(Status status) noexcept {
  switch (status) {
#define WEFT_STATUS_NAME(name, code, text) \
  case Status::name:                       \
    return #name;
    WEFT_STATUS_TABLE(WEFT_STATUS_NAME)
#undef WEFT_STATUS_NAME
  }
  return "unknown";
}

constexpr const char* status_text(Status status) noexcept {
  switch (status) {
#define WEFT_STATUS_TEXT(name, code, text) \
  case Status::name:                       \
    return text;
    WEFT_STATUS_TABLE(WEFT_STATUS_TEXT)
#undef WEFT_STATUS_TEXT
  }
  return "unknown";
}

}  // namespace weft
