// Makes bpf() calls. Each passes a structure with the fields that its command takes; the kernel takes the rest as zero.
#include "native/datapath/xdp/bpf.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "native/datapath/fork_registry.h"

namespace weft::datapath::xdp {
namespace {

constexpr char kLicense[] = "Apache-2.0";
constexpr char kProgramName[16] = "weft_xdp";
constexpr std::size_t kLogBytes = 1 << 16;

template <class Attributes>
int bpf(BpfCommand command, Attributes* attributes) noexcept {
  return static_cast<int>(::syscall(SYS_bpf, command, attributes, sizeof *attributes));
}

// For a command that returns a descriptor.
template <class Attributes>
BpfHandle make(BpfCommand command, Attributes* attributes) noexcept {
  struct Call {
    BpfCommand command;
    Attributes* attributes;
  } call{command, attributes};
  const auto open = [](void* argument) {
    const auto* const wanted = static_cast<const Call*>(argument);
    return bpf(wanted->command, wanted->attributes);
  };
  return BpfHandle(open_registered(open, &call));
}

std::uint64_t address_of(const void* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }

struct MapEntry {
  std::uint32_t map, unused;
  std::uint64_t key, value, flags;
};

struct ProgramAttributes {
  std::uint32_t type, instruction_count;
  std::uint64_t instructions, license;
  std::uint32_t log_level, log_bytes;
  std::uint64_t log;
  std::uint32_t kernel_version, flags;
  char name[16];
  std::uint32_t interface_index, expected_attach_type;
};

}  // namespace

BpfHandle& BpfHandle::operator=(BpfHandle&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = other.release();
  }
  return *this;
}

int BpfHandle::release() noexcept { return std::exchange(descriptor_, -1); }
void BpfHandle::reset() noexcept { close_socket(release()); }

BpfHandle create_map(MapKind kind, std::uint32_t key_bytes, std::uint32_t value_bytes, std::uint32_t entries) noexcept {
  struct {
    std::uint32_t kind, key_bytes, value_bytes, entries, flags;
  } attributes{kind, key_bytes, value_bytes, entries, 0};
  return make(kMapCreate, &attributes);
}

BpfHandle load_xdp_program(const std::vector<BpfInstruction>& code, std::string* log) {
  ProgramAttributes attributes{};
  attributes.type = kProgramXdp;
  attributes.instruction_count = static_cast<std::uint32_t>(code.size());
  attributes.instructions = address_of(code.data());
  attributes.license = address_of(kLicense);
  attributes.flags = kProgramHasFragments;
  std::memcpy(attributes.name, kProgramName, sizeof attributes.name);
  attributes.expected_attach_type = kAttachXdp;
  BpfHandle program = make(kProgramLoad, &attributes);
  if (!program && errno == EINVAL) {
    attributes.flags = 0;
    program = make(kProgramLoad, &attributes);
  }
  if (!program && log != nullptr && errno != EPERM) {
    std::vector<char> said(kLogBytes);
    attributes.log = address_of(said.data());
    attributes.log_bytes = static_cast<std::uint32_t>(said.size());
    attributes.log_level = 1;
    program = make(kProgramLoad, &attributes);
    if (!program) log->assign(said.data());
  }
  return program;
}

BpfHandle attach_xdp(const BpfHandle& program, unsigned interface_index) noexcept {
  struct {
    std::uint32_t program, interface_index, attach_type, flags;
  } attributes{static_cast<std::uint32_t>(program.get()), interface_index, kAttachXdp, kAttachNative};
  return make(kLinkCreate, &attributes);
}

bool update_map(const BpfHandle& map, const void* key, const void* value) noexcept {
  MapEntry entry{static_cast<std::uint32_t>(map.get()), 0, address_of(key), address_of(value), 0};
  return bpf(kMapUpdate, &entry) == 0;
}

bool delete_from_map(const BpfHandle& map, const void* key) noexcept {
  MapEntry entry{static_cast<std::uint32_t>(map.get()), 0, address_of(key), 0, 0};
  return bpf(kMapDelete, &entry) == 0;
}

}  // namespace weft::datapath::xdp
