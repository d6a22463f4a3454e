// The memory windows of one end, as a NIC has them: which of them are open, and what a write through one does. Private
// to the rig's files.
#pragma once

#include <cstring>
#include <unordered_map>

#include "native/core/types.h"

namespace weft::sim {

class Windows {
 public:
  // Opens a window and returns its key, which is never 0 and never used again.
  core::u32 open(core::u8* begin, core::u64 bytes) {
    open_[++last_key_] = {begin, bytes};
    return last_key_;
  }
  void close(core::u32 key) noexcept { open_.erase(key); }
  void close_all() noexcept { open_.clear(); }

  // Writes all bytes if the key belongs to an open window that contains the range; otherwise writes nothing and returns
  // false.
  bool write(core::u32 key, core::u64 address, const core::u8* from, core::u64 bytes) noexcept {
    const auto found = open_.find(key);
    if (found == open_.end()) return false;
    const Window& window = found->second;
    const core::u64 offset = address - reinterpret_cast<std::uintptr_t>(window.begin);
    if (offset > window.bytes || bytes > window.bytes - offset) return false;
    if (bytes != 0) std::memcpy(window.begin + offset, from, bytes);  // an empty segment has no payload to point to
    return true;
  }

 private:
  struct Window {
    core::u8* begin;
    core::u64 bytes;
  };
  std::unordered_map<core::u32, Window> open_;
  core::u32 last_key_ = 0;
};

}  // namespace weft::sim
