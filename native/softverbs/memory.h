// Keys: which region or window a key names, and whether it allows what a packet or a request asks of it.
// Moves the bytes too, by memcpy or by a copy of the GPU's; everything under the adapter's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "native/softverbs/objects.h"
#include "native/softverbs/settings.h"

namespace weft::softverbs {

class Memory {
 public:
  // Null with errno set. `certain`: known to be a GPU's (a dma-buf's), by the address that is its iova.
  Region* add(const Settings& settings, ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t first, int access,
              bool certain);
  // EBUSY while windows are bound to it.
  int remove(Region* region);
  Window* add_window(ibv_pd* pd);
  void remove_window(Window* window);
  // Puts `key` in the place of the window's; of length zero it closes. False: not allowed, or window or region have
  // gone since this was asked for.
  bool bind(Window* window, std::uint32_t key, const ibv_mw_bind_info& info, std::uint32_t region_key);
  static std::uint32_t next_key(std::uint32_t key) noexcept { return (key & ~0xFFu) | ((key + 1) & 0xFFu); }

  // What local requests name. False: no such region, not in its bounds, or not to be written.
  bool allows(const ibv_pd* pd, const ibv_sge& piece, bool write) const;
  bool read(const ibv_sge& piece, std::uint32_t offset, std::uint8_t* to, std::uint32_t bytes) const;
  bool write(const ibv_sge& piece, std::uint32_t offset, const std::uint8_t* from, std::uint32_t bytes) const;
  // What a peer's request names.
  bool allows_remote_write(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const;
  bool write_remote(std::uint32_t key, std::uint64_t address, const std::uint8_t* from, std::uint32_t bytes) const;

 private:
  std::uint32_t draw_index() noexcept;
  void unbind(Window* window);

  std::unordered_map<std::uint32_t, std::unique_ptr<Region>> regions_;  // by key
  std::unordered_map<std::uint32_t, Window*> bound_;                    // by key
  std::unordered_map<Window*, std::unique_ptr<Window>> windows_;
  std::uint32_t next_index_ = 1;
};

}  // namespace weft::softverbs
