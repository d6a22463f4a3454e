// Writes all bytes to a file, even if a signal interrupts a write or a write takes only some of them.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace weft::engine {

// Returns false with errno set if a write failed; some of the bytes may be in the file then.
inline bool write_all(int file, const void* data, std::size_t bytes) noexcept {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    const ssize_t wrote = ::write(file, next, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    next += wrote;
    bytes -= static_cast<std::size_t>(wrote);
  }
  return true;
}

}  // namespace weft::engine
