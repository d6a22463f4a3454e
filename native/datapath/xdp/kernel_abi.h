// The parts of the kernel's interface for AF_XDP sockets and BPF that weft uses, declared here because headers of older
// systems lack some of them. Sources: linux/if_xdp.h and linux/bpf.h of Linux 6.6; Documentation/networking/af_xdp.rst.
#pragma once

#include <cstdint>

namespace weft::datapath::xdp {

// linux/if_xdp.h
inline constexpr int kFamily = 44;  // AF_XDP
inline constexpr int kLevel = 283;  // SOL_XDP
enum SocketOption : int {
  kMmapOffsets = 1,
  kRxRing = 2,
  kTxRing = 3,
  kUmemRegister = 4,
  kUmemFillRing = 5,
  kUmemCompletionRing = 6,
  kStatistics = 7,
  kOptions = 8,
  kTxBudget = 9,  // XDP_MAX_TX_SKB_BUDGET: packets that one sendto() sends in copy mode (32 before Linux 6.17)
};
inline constexpr std::uint16_t kBindShared = 1 << 0, kBindNeedWakeup = 1 << 3, kBindSegments = 1 << 4;
inline constexpr std::uint32_t kRingNeedsWakeup = 1;  // flag of a ring
inline constexpr std::uint32_t kOptionZeroCopy = 1;   // in kOptions
inline constexpr std::uint32_t kContinues = 1;        // option of a descriptor: the packet goes on in the next one
inline constexpr std::int64_t kRxOffset = 0, kTxOffset = 0x80000000, kFillOffset = 0x100000000,
                              kCompletionOffset = 0x180000000;  // of the rings, for mmap()

struct BindAddress {  // sockaddr_xdp
  std::uint16_t family = kFamily, flags = 0;
  std::uint32_t interface_index = 0, queue = 0;
  std::uint32_t shared_with = 0;  // descriptor of a socket with the same memory
};

struct UmemRegistration {  // xdp_umem_reg, as Linux 5.4 has it
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t chunk_bytes = 0, headroom_bytes = 0, flags = 0, reserved = 0;
};

struct RingOffsets {  // xdp_ring_offset
  std::uint64_t producer = 0, consumer = 0, entries = 0, flags = 0;
};
struct MmapOffsets {  // xdp_mmap_offsets
  RingOffsets rx, tx, fill, completion;
};

struct Descriptor {  // xdp_desc
  std::uint64_t address;
  std::uint32_t bytes, options;
};

struct Statistics {  // xdp_statistics
  std::uint64_t rx_dropped = 0, rx_invalid = 0, tx_invalid = 0, rx_ring_full = 0, fill_ring_empty = 0, tx_empty = 0;
};

static_assert(sizeof(BindAddress) == 16 && sizeof(UmemRegistration) == 32 && sizeof(MmapOffsets) == 128);
static_assert(sizeof(Descriptor) == 16 && sizeof(Statistics) == 48);

// linux/bpf.h
enum BpfCommand : int { kMapCreate = 0, kMapUpdate = 2, kMapDelete = 3, kProgramLoad = 5, kLinkCreate = 28 };
enum MapKind : std::uint32_t { kHashMap = 1, kSocketMap = 17 };  // BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_XSKMAP
inline constexpr std::uint32_t kProgramXdp = 6, kAttachXdp = 37, kProgramHasFragments = 1 << 5;
inline constexpr std::uint32_t kAttachNative = 1 << 2;  // XDP_FLAGS_DRV_MODE: by the driver, not by generic code

struct BpfInstruction {  // bpf_insn
  std::uint8_t code;
  std::uint8_t registers;  // the destination in the lower four bits, the source in the upper four
  std::int16_t offset;
  std::int32_t value;
};
static_assert(sizeof(BpfInstruction) == 8);

}  // namespace weft::datapath::xdp
