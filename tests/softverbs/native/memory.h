// Memory regions and windows by key. Checks what a packet or request may access, and copies the bytes by memcpy or by
// the GPU. The adapter's lock must be held.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "tests/softverbs/native/objects.h"
#include "tests/softverbs/native/settings.h"

namespace weft::softverbs {

class Memory {
 public:
  // Registers a region. On failure returns null and sets errno. `certain`: the memory is known to be GPU memory (a
  // dma-buf), whose address was given as the iova.
  Region* add(const Settings& settings, ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t first, int access,
              bool certain);
  // Removes a region. Returns EBUSY while memory windows are bound to it.
  int remove(Region* region);
  Window* add_window(ibv_pd* pd);
  void remove_window(Window* window);
  // Changes the window's key to `key` and binds the window; length zero closes it. Returns false if this is not
  // allowed, or if the window or region was removed after the request was posted.
  bool bind(Window* window, std::uint32_t key, const ibv_mw_bind_info& info, std::uint32_t region_key);
  static std::uint32_t next_key(std::uint32_t key) noexcept { return (key & ~0xFFu) | ((key + 1) & 0xFFu); }

  // Access by local requests. allows() returns false if there is no such region, the range is out of bounds, or the
  // region is not writable.
  bool allows(const ibv_pd* pd, const ibv_sge& piece, bool write) const;
  bool read(const ibv_sge& piece, std::uint32_t offset, std::uint8_t* to, std::uint32_t bytes) const;
  bool write(const ibv_sge& piece, std::uint32_t offset, const std::uint8_t* from, std::uint32_t bytes) const;
  // Access by a peer's requests.
  bool allows_remote_write(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const;
  bool write_remote(std::uint32_t key, std::uint64_t address, const std::uint8_t* from, std::uint32_t bytes) const;

 private:
  std::uint32_t draw_index() noexcept;
  void unbind(Window* window);

  std::unordered_map<std::uint32_t, std::unique_ptr<Region>> regions_;  // regions by key
  std::unordered_map<std::uint32_t, Window*> bound_;                    // open windows by key
  std::unordered_map<Window*, std::unique_ptr<Window>> windows_;
  std::uint32_t next_index_ = 1;
};

}  // namespace weft::softverbs
