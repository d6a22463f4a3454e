// Creates BPF maps, programs and links by the bpf() system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/xdp/kernel_abi.h"

namespace weft::datapath::xdp {

// A BPF object's descriptor, which a forked child does not keep: the object goes with its last descriptor.
class BpfHandle {
 public:
  BpfHandle() = default;
  explicit BpfHandle(int descriptor) noexcept : descriptor_(descriptor) {}
  ~BpfHandle() { reset(); }
  BpfHandle(const BpfHandle&) = delete;
  BpfHandle& operator=(const BpfHandle&) = delete;
  BpfHandle(BpfHandle&& other) noexcept : descriptor_(other.release()) {}
  BpfHandle& operator=(BpfHandle&& other) noexcept;
  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  void reset() noexcept;

 private:
  int release() noexcept;
  int descriptor_ = -1;
};

// On failure these return an empty handle, with errno.
BpfHandle create_map(MapKind kind, std::uint32_t key_bytes, std::uint32_t value_bytes, std::uint32_t entries) noexcept;
// `log`: what the kernel's verifier said, if the program is refused; may be null. The program takes packets of several
// buffers where the kernel has them (Linux 5.18).
BpfHandle load_xdp_program(const std::vector<BpfInstruction>& code, std::string* log);
// Attaches the program to the interface's driver. It is detached when the last descriptor of the link is closed.
BpfHandle attach_xdp(const BpfHandle& program, unsigned interface_index) noexcept;

// Both return false on failure, with errno.
bool update_map(const BpfHandle& map, const void* key, const void* value) noexcept;
bool delete_from_map(const BpfHandle& map, const void* key) noexcept;

}  // namespace weft::datapath::xdp
