// Registers callers' memory with every port, including those opened later; deregisters it only when no posted request
// uses it any more. Also opens and closes memory windows onto registered memory.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "native/datapath/clock.h"
#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

// For messages below this size, copying costs less than opening and closing a memory window.
constexpr std::uint64_t kWindowBytesMin = 16 * 1024;
constexpr std::int64_t kDrainNsMax = 1'000'000'000;

}  // namespace

bool VerbsDatapath::add_memory(const Memory& memory, std::string* error) {
  // Without an open NIC, it is not known whether a NIC accepts this GPU memory, and a CPU could not copy it later.
  if (memory.on_device && ports_.empty()) {
    *error = "GPU memory was registered before the first connection, when no NIC was open: it uses bounce buffers";
    return false;
  }
  Registered& made = memories_[memory.id];
  made.memory = memory;
  // Keeps a duplicate of the descriptor for ports that are opened later, because the caller may close its own.
  if (memory.dmabuf >= 0) made.memory.dmabuf = ::fcntl(memory.dmabuf, F_DUPFD_CLOEXEC, 0);
  bool known = true;
  for (const auto& port : ports_) known = region_of(&made, port.get(), error) != nullptr && known;
  if (!known) remove_memory(memory.id);
  return known;
}

// Registers memory with a port: by dma-buf if it has one, otherwise or on failure by address, which works for host
// memory, and for GPU memory with a peer memory module.
ibv_mr* VerbsDatapath::region_of(Registered* memory, VerbsPort* port, std::string* error) {
  if (memory->regions.size() <= port->index) memory->regions.resize(port->index + 1);
  Region& region = memory->regions[port->index];
  if (region.region != nullptr || region.refused) return region.region;
  const Memory& what = memory->memory;
  // The NIC may reorder its payload writes (relaxed ordering), because payload is only read after a completion.
  const int access = IBV_ACCESS_LOCAL_WRITE | (options_.direct ? IBV_ACCESS_MW_BIND : 0);
  if (what.dmabuf >= 0 && ibv_->reg_dmabuf_mr != nullptr) {
    region.region = ibv_->reg_dmabuf_mr(port->pd, what.dmabuf_offset, what.bytes,
                                        reinterpret_cast<std::uintptr_t>(what.data), what.dmabuf, access);
    counters_->memory_by_dmabuf += region.region != nullptr ? 1 : 0;
  }
  if (region.region == nullptr && ibv_->reg_mr_iova2 != nullptr) {
    region.region = ibv_->reg_mr_iova2(port->pd, what.data, what.bytes, reinterpret_cast<std::uintptr_t>(what.data),
                                       static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING);
  }
  if (region.region == nullptr) region.region = ibv_->reg_mr(port->pd, what.data, what.bytes, access);
  if (region.region != nullptr) return region.region;
  region.refused = true;
  ++counters_->memory_refused;
  if (error != nullptr) {
    *error = "the NIC cannot register " + std::to_string(what.bytes >> 10) + " KiB of the caller's memory: ";
    error->append(std::strerror(errno));
    error->append(what.on_device ? "; its messages use bounce buffers instead"
                                 : "; its bytes are copied instead (ulimit -l may be too low)");
  }
  return nullptr;
}

ibv_mr* VerbsDatapath::region_or_null(std::uint32_t memory, VerbsPort* port) noexcept {
  if (memory == 0) return nullptr;
  const auto found = memories_.find(memory);
  if (found == memories_.end()) return nullptr;
  try {
    return region_of(&found->second, port, nullptr);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool VerbsDatapath::lies_on_device(std::uint32_t memory) const noexcept {
  const auto found = memory == 0 ? memories_.end() : memories_.find(memory);
  return found != memories_.end() && found->second.memory.on_device;
}

// Waits for the posted requests of `chosen` records that read registered memory. A NIC that read the memory after it
// was freed or reused would send wrong bytes.
template <class Chosen>
void VerbsDatapath::drain(const Chosen& chosen) noexcept {
  const auto reads_it = [&](const SendRecord& record) { return record.memory != 0 && chosen(record); };
  const auto under_way = [&] {
    bool any = false;
    records_.for_each([&](const SendRecord& record) { any = any || reads_it(record); });
    return any;
  };
  if (!under_way()) return;
  for (const std::int64_t until_ns = now_ns() + kDrainNsMax; under_way() && now_ns() < until_ns;) {
    for (std::size_t i = 0; i < ports_.size(); ++i) reap(ports_[i].get());
  }
  // If requests do not finish, their queue pair is reset, which flushes them, and then re-established.
  records_.for_each([&](const SendRecord& record) {
    if (!reads_it(record)) return;
    QueuePair* pair = record.pair;
    const std::uint32_t peer = record.peer;
    const std::uint8_t path = record.path;
    if (record.port->reset_pair(pair)) records_.give_back_of(pair);
    on_broken(peer, path);
  });
}

void VerbsDatapath::quiesce(std::uint32_t peer) noexcept {
  drain([peer](const SendRecord& record) { return record.peer == peer; });
}

void VerbsDatapath::remove_memory(std::uint32_t id) noexcept {
  const auto found = memories_.find(id);
  if (found == memories_.end()) return;
  drain([id](const SendRecord& record) { return record.memory == id || record.memory == SendRecord::kSeveral; });
  for (const auto& port : ports_) {
    if (found->second.regions.size() <= port->index) continue;
    Region& region = found->second.regions[port->index];
    if (region.region == nullptr) continue;
    // The windows that are still open belong to receives whose message was shorter than the buffer. No peer has written
    // through them, and none will.
    port->windows.close_onto(region.region);
    static_cast<void>(ibv_->dereg_mr(region.region));
  }
  if (found->second.memory.dmabuf >= 0) ::close(found->second.memory.dmabuf);
  memories_.erase(found);
}

std::uint32_t VerbsDatapath::open_memory_window(std::uint32_t peer, std::uint32_t memory, std::uint8_t* data,
                                                std::uint64_t bytes) noexcept {
  const Link* from = link(peer);
  if (!options_.direct || from == nullptr || bytes < kWindowBytesMin) return 0;
  // A memory window's key is valid in one protection domain only. If the paths use several NIC ports, no window is
  // opened, and the message is received into slots and copied from there.
  VerbsPort* port = from->ports.front();
  for (const VerbsPort* each : from->ports) {
    if (each != port) return 0;
  }
  ibv_mr* region = region_or_null(memory, port);
  if (region == nullptr) return 0;
  const std::uint32_t key = port->windows.open(region, data, bytes);
  // Keys are unique per device only. If another device's window has the same key, no window is opened for this message.
  try {
    if (key != 0 && window_ports_.try_emplace(key, port).second) return key;
  } catch (const std::bad_alloc&) {  // out of memory: no window for this message
  }
  if (key != 0) port->windows.close(key);
  ++counters_->windows_refused;
  return 0;
}

void VerbsDatapath::close_memory_window(std::uint32_t key) noexcept {
  const auto found = window_ports_.find(key);
  if (found == window_ports_.end()) return;
  found->second->windows.close(key);
  window_ports_.erase(found);
}

}  // namespace weft::datapath
