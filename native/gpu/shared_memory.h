// GPU memory that two processes of a host share (CUDA IPC): one names memory of its GPU, the other maps it and lets its
// own GPU copy from there.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "native/gpu/shared_device.h"

namespace weft::gpu {

// Names bytes of an allocation to another process. It lies in memory that both map: the peer may write anything here.
struct NamedMemory {
  IpcHandle handle;
  std::uint64_t allocation_id = 0;  // the driver's; never the same for two allocations of a process
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset_bytes = 0;           // in the allocation
  std::array<std::uint64_t, 2> holds = {};  // of a trial: what is in the memory
  std::uint64_t unused = 0;
};
static_assert(sizeof(NamedMemory) == 112);

// Names memory of one device. Used by one thread at a time, with a current context.
class MemoryNames {
 public:
  explicit MemoryNames(const Driver& driver) noexcept : driver_(driver) {}
  // False: this memory cannot be shared, for example that of a pool or of virtual memory management.
  bool name(Address address, std::uint64_t bytes, NamedMemory* out);

 private:
  static constexpr std::size_t kNamesMax = 1024;
  const Driver& driver_;
  std::map<std::uint64_t, IpcHandle> handles_;  // by allocation
};

// Memory of other processes that is mapped here. Mappings are kept: to close one may wait for all work of the GPU, such
// as a kernel of the caller's that waits for a peer. What the other process has freed stays taken as long. Used by one
// thread.
class Mappings {
 public:
  // The one that was not used for longest is closed when there are more, unless a stream waits for a message.
  static constexpr std::size_t kMappingsMax = 64;

  struct Mapping {
    NamedMemory name;
    Address address = 0;
    std::uint64_t bytes = 0;
    int users = 0;
    std::int64_t used_ns = 0;
  };

  Mappings(const Driver& driver, SharedDevice* device) noexcept : driver_(driver), device_(device) {}
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;
  ~Mappings();
  // Maps the allocation, and checks that `bytes` at the offset are in it. Null: `error` says why not.
  Mapping* open(const NamedMemory& name, std::uint64_t bytes, std::string* error);
  static void release(Mapping* mapping, std::int64_t now_ns) noexcept {
    --mapping->users;
    mapping->used_ns = now_ns;
  }
  // Whether each GPU of this process can read memory of the one that holds the mapping.
  bool reads_everywhere(const Mapping& mapping) const;

 private:
  bool map(Mapping* mapping, std::string* error);
  bool close_oldest() noexcept;
  template <class Choose>
  void close_those(const Choose& choose) noexcept;

  const Driver& driver_;
  SharedDevice* const device_;
  std::list<Mapping> all_;
};

}  // namespace weft::gpu
