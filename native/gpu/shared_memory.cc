// Maps memory of other processes. What a peer says of its memory is checked against the driver before a GPU reads
// there, because a read beyond an allocation would end the context.
#include "native/gpu/shared_memory.h"

#include <algorithm>
#include <cstring>

namespace weft::gpu {
namespace {

constexpr int kBufferId = 7, kOrdinal = 9, kIpcCapable = 10, kRangeStart = 11,
              kRangeBytes = 12;          // CU_POINTER_ATTRIBUTE_...
constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

bool same(const NamedMemory& a, const NamedMemory& b) noexcept {
  return a.allocation_id == b.allocation_id && std::memcmp(&a.handle, &b.handle, sizeof a.handle) == 0;
}

}  // namespace

bool MemoryNames::name(Address address, std::uint64_t bytes, NamedMemory* out) {
  std::uint64_t id = 0, length = 0;
  Address start = 0;
  int capable = 0;
  const int asked[] = {kBufferId, kIpcCapable, kRangeStart, kRangeBytes};
  void* answers[] = {&id, &capable, &start, &length};
  if (driver_.pointer_attributes(4, asked, answers, address) != kSuccess || capable == 0) return false;
  if (start > address || bytes > length || address - start > length - bytes) return false;
  auto known = handles_.find(id);
  if (known == handles_.end()) {
    IpcHandle handle;
    if (driver_.ipc_name(&handle, start) != kSuccess) return false;
    if (handles_.size() >= kNamesMax) handles_.clear();  // of allocations that were freed, for the most part
    known = handles_.emplace(id, handle).first;
  }
  out->handle = known->second;
  out->allocation_id = id;
  out->allocation_bytes = length;
  out->offset_bytes = address - start;
  return true;
}

// Closes mappings that nobody uses. The driver waits for all work of the device when it closes one.
template <class Choose>
void Mappings::close_those(const Choose& choose) noexcept {
  const auto idle = [&](const Mapping& each) { return each.users == 0 && choose(each); };
  if (std::none_of(all_.begin(), all_.end(), idle)) return;
  device_->persistent_kernel().free_unless_waited([&] {
    const Current current(driver_, device_->context());
    for (auto each = all_.begin(); each != all_.end();) {
      if (!idle(*each)) {
        ++each;
        continue;
      }
      static_cast<void>(driver_.ipc_close(each->address));  // an error means that a destroyed context has closed it
      each = all_.erase(each);
    }
  });
}

// False: none can be closed now.
bool Mappings::close_oldest() noexcept {
  std::int64_t oldest_ns = INT64_MAX;
  for (const Mapping& each : all_) {
    if (each.users == 0) oldest_ns = std::min(oldest_ns, each.used_ns);
  }
  const std::size_t before = all_.size();
  close_those([&](const Mapping& each) { return each.used_ns == oldest_ns; });
  return all_.size() < before;
}

// What cannot be closed while a stream waits stays mapped until the process ends.
Mappings::~Mappings() {
  close_those([](const Mapping&) { return true; });
}

bool Mappings::map(Mapping* mapping, std::string* error) {
  const Current current(driver_, device_->context());
  Result result = current.result();
  const char* called = "cuCtxPushCurrent";
  if (result == kSuccess) {
    result = driver_.ipc_open(&mapping->address, mapping->name.handle, kLazyPeerAccess);
    called = "cuIpcOpenMemHandle";
  }
  if (result != kSuccess) {
    *error = driver_.say(called, result);
    return false;
  }
  Address start = 0;
  const int asked[] = {kRangeStart, kRangeBytes};
  void* answers[] = {&start, &mapping->bytes};
  result = driver_.pointer_attributes(2, asked, answers, mapping->address);
  const bool known = result == kSuccess && start <= mapping->address && mapping->address - start <= mapping->bytes;
  if (known) {
    mapping->bytes -= mapping->address - start;
    return true;
  }
  static_cast<void>(driver_.ipc_close(mapping->address));
  *error = result != kSuccess ? driver_.say("cuPointerGetAttributes", result) : "the driver does not know the memory";
  return false;
}

Mappings::Mapping* Mappings::open(const NamedMemory& name, std::uint64_t bytes, std::string* error) {
  auto found = std::find_if(all_.begin(), all_.end(), [&](const Mapping& each) { return same(each.name, name); });
  if (found == all_.end()) {
    while (all_.size() >= kMappingsMax && close_oldest()) {
    }
    std::list<Mapping> made(1);
    made.front().name = name;
    if (!map(&made.front(), error)) return nullptr;
    all_.splice(all_.begin(), made);
    found = all_.begin();
  }
  if (name.offset_bytes > found->bytes || bytes > found->bytes - name.offset_bytes) {
    *error = "the peer lends memory beyond the end of an allocation";
    return nullptr;
  }
  ++found->users;
  return &*found;
}

bool Mappings::reads_everywhere(const Mapping& mapping) const {
  int ordinal = -1, devices = 0;
  const int asked[] = {kOrdinal};
  void* answers[] = {&ordinal};
  DeviceId owner = 0;
  if (driver_.pointer_attributes(1, asked, answers, mapping.address) != kSuccess || ordinal < 0) return false;
  if (driver_.device_get(&owner, ordinal) != kSuccess || driver_.device_count(&devices) != kSuccess) return false;
  for (int i = 0; i < devices; ++i) {
    DeviceId other = 0;
    int can = 0;
    if (i == ordinal) continue;
    if (driver_.device_get(&other, i) != kSuccess || driver_.can_access_peer(&can, other, owner) != kSuccess ||
        can == 0)
      return false;
  }
  return true;
}

}  // namespace weft::gpu
