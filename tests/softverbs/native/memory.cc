// The upper 24 bits of a key identify a region or window and are never reused; the lowest eight bits of a window's key
// change with each binding. Access is checked completely before copying, so a refused copy has written nothing.
#include "tests/softverbs/native/memory.h"

#include <cerrno>
#include <cstring>

namespace weft::softverbs {
namespace {

bool within(std::uint64_t first, std::uint64_t bytes, std::uint64_t address, std::uint64_t wanted) noexcept {
  return address >= first && address - first <= bytes && wanted <= bytes - (address - first);
}

std::uint64_t place_of(const Region& region, std::uint64_t address) noexcept {
  return reinterpret_cast<std::uintptr_t>(region.addr) + (address - region.first);
}

// Excluded from TSan, because these are accesses of an emulated NIC, which no thread could synchronise with. They do no
// harm: while a message is in progress, a late duplicate of a write puts the same bytes into the same place, and tests
// detect writes after that by checking the contents.
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"))) void move_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; ++i) {
    static_cast<volatile std::uint8_t*>(to)[i] = static_cast<const volatile std::uint8_t*>(from)[i];
  }
}
#else
void move_bytes(void* to, const void* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
#endif

bool copy_in(const Region& region, std::uint64_t address, const std::uint8_t* from, std::uint32_t bytes) {
  if (bytes == 0) return true;
  const std::uint64_t place = place_of(region, address);
  if (region.device != nullptr) return region.device->write(place, from, bytes);
  move_bytes(reinterpret_cast<void*>(place), from, bytes);
  return true;
}

}  // namespace

std::uint32_t Memory::draw_index() noexcept { return next_index_++ << 8; }

Region* Memory::add(const Settings& settings, ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t first, int access,
                    bool certain) {
  // Remote write access requires local write access (InfiniBand Architecture Specification 1.4, 10.6.3.1).
  const int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & remote) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto made = std::make_unique<Region>();
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at));
  const Where where = find_device_memory(settings.cuda_library, address, bytes, certain, &made->device);
  if (where == Where::nowhere || (certain && where != Where::device)) {
    errno = certain ? EOPNOTSUPP : EFAULT;
    return nullptr;
  }
  made->context = pd->context;
  made->pd = pd;
  made->addr = at;
  made->length = bytes;
  made->first = first;
  made->access = access;
  made->lkey = made->rkey = draw_index();
  return (regions_[made->lkey] = std::move(made)).get();
}

int Memory::remove(Region* region) {
  if (region->windows != 0) return EBUSY;
  regions_.erase(region->lkey);
  return 0;
}

Window* Memory::add_window(ibv_pd* pd) {
  auto made = std::make_unique<Window>();
  made->context = pd->context;
  made->pd = pd;
  made->type = IBV_MW_TYPE_1;
  made->rkey = draw_index();
  Window* const window = made.get();
  windows_[window] = std::move(made);
  return window;
}

void Memory::unbind(Window* window) {
  if (window->region == nullptr) return;
  --window->region->windows;
  bound_.erase(window->key);
  window->region = nullptr;
}

void Memory::remove_window(Window* window) {
  unbind(window);
  windows_.erase(window);
}

bool Memory::bind(Window* window, std::uint32_t key, const ibv_mw_bind_info& info, std::uint32_t region_key) {
  // The window may have been removed, and another one allocated at the same address; the keys then differ. Closing a
  // removed window succeeds.
  if (windows_.find(window) == windows_.end() || (window->rkey ^ key) >> 8 != 0) return info.length == 0;
  if (info.length == 0) {
    unbind(window);
    return true;
  }
  const auto found = regions_.find(region_key);
  if (found == regions_.end()) return false;
  Region* const region = found->second.get();
  const bool writes = (info.mw_access_flags & IBV_ACCESS_REMOTE_WRITE) != 0;
  if ((region->access & IBV_ACCESS_MW_BIND) == 0 || region->pd != window->pd ||
      (writes && (region->access & IBV_ACCESS_LOCAL_WRITE) == 0) ||
      !within(region->first, region->length, info.addr, info.length)) {
    return false;
  }
  unbind(window);
  window->region = region;
  window->first = info.addr;
  window->bytes = info.length;
  window->access = info.mw_access_flags;
  window->key = key;
  ++region->windows;
  bound_[key] = window;
  return true;
}

bool Memory::allows(const ibv_pd* pd, const ibv_sge& piece, bool write) const {
  if (piece.length == 0) return true;
  const auto found = regions_.find(piece.lkey);
  if (found == regions_.end()) return false;
  const Region& region = *found->second;
  return region.pd == pd && (!write || (region.access & IBV_ACCESS_LOCAL_WRITE) != 0) &&
         within(region.first, region.length, piece.addr, piece.length);
}

bool Memory::read(const ibv_sge& piece, std::uint32_t offset, std::uint8_t* to, std::uint32_t bytes) const {
  const auto found = regions_.find(piece.lkey);
  if (found == regions_.end()) return false;
  const Region& region = *found->second;
  const std::uint64_t place = place_of(region, piece.addr + offset);
  if (region.device != nullptr) return region.device->read(place, to, bytes);
  move_bytes(to, reinterpret_cast<const void*>(place), bytes);
  return true;
}

bool Memory::write(const ibv_sge& piece, std::uint32_t offset, const std::uint8_t* from, std::uint32_t bytes) const {
  const auto found = regions_.find(piece.lkey);
  return found != regions_.end() && copy_in(*found->second, piece.addr + offset, from, bytes);
}

bool Memory::allows_remote_write(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                                 std::uint64_t bytes) const {
  if (bytes == 0) return true;  // no byte is accessed, so the key need not be valid
  if (const auto window = bound_.find(key); window != bound_.end()) {
    const Window& open = *window->second;
    return open.pd == pd && (open.access & IBV_ACCESS_REMOTE_WRITE) != 0 &&
           within(open.first, open.bytes, address, bytes);
  }
  const auto region = regions_.find(key);
  if (region == regions_.end()) return false;
  const Region& whole = *region->second;
  return whole.pd == pd && (whole.access & IBV_ACCESS_REMOTE_WRITE) != 0 &&
         within(whole.first, whole.length, address, bytes);
}

bool Memory::write_remote(std::uint32_t key, std::uint64_t address, const std::uint8_t* from,
                          std::uint32_t bytes) const {
  if (bytes == 0) return true;
  if (const auto window = bound_.find(key); window != bound_.end()) {
    return copy_in(*window->second->region, address, from, bytes);
  }
  const auto region = regions_.find(key);
  return region != regions_.end() && copy_in(*region->second, address, from, bytes);
}

}  // namespace weft::softverbs
