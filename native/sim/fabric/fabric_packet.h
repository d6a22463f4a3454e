// The packets of the fabric, which have sizes, a destination and header bytes but no payload; and the pool that holds
// them.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "native/sim/fabric/fabric_plan.h"
#include "native/wire/burst.h"

namespace weft::sim {

// The fabric counts time in picoseconds, because the time per byte is rarely a whole number of nanoseconds.
inline constexpr i64 kFabricPsPerNs = 1000;
inline constexpr i64 kFabricPsPerS = 1'000'000'000'000;
// Virtual time at the beginning. Like the time of a real clock it is not zero, so that "never yet" (0) differs from "at
// the beginning".
inline constexpr i64 kFabricBeginNs = 1'000'000'000;

// A packet in two cache lines. A data header is stored inline; a longer header is in a separate block.
struct alignas(64) FabricPacket {
  static constexpr std::size_t kInlineBytes = wire::kDataBytes;

  FabricPacket* next = nullptr;  // the next packet in a queue or free list
  i64 due_ps = 0;                // when the packet reaches the next node
  const u8* payload = nullptr;   // never read; the address tells which bytes the packet carries
  u8* block = nullptr;           // header, if it is longer than kInlineBytes
  // Telemetry: of a data packet what ports stamped into it, of an acknowledgment what it brings back. Null if no policy
  // of the run reads it.
  wire::HopRecords* hops = nullptr;
  u32 from = 0, to = 0;   // host numbers
  u32 hash = 0;           // hash of hosts and path, by which switches select ports
  u32 port = 0;           // port through which the packet reached this switch
  u32 payload_bytes = 0;  // size as sent, before trimming
  u16 header_bytes = 0;
  u8 path = 0;
  bool first : 1 = false;  // sent before data (priority)
  bool data : 1 = false;
  bool marked : 1 = false;    // ECN mark: congestion experienced
  bool trimmed : 1 = false;   // a switch cut off its payload
  bool last_hop : 1 = false;  // with `trimmed`: it was cut at the queue of the link to its host
  bool pause : 1 = false;     // a PFC frame, which tells the sending port of a link to pause
  bool resume : 1 = false;
  u8 inline_header[kInlineBytes];

  const u8* header() const noexcept { return block != nullptr ? block : inline_header; }
};
static_assert(sizeof(FabricPacket) == 128);

// The free packets and header blocks of one shard. Packets may be given to another pool than the one that they were
// taken from, so the numbers in use are right only as sums over all pools.
class FabricPacketPool {
 public:
  FabricPacketPool() = default;
  FabricPacketPool(const FabricPacketPool&) = delete;
  FabricPacketPool& operator=(const FabricPacketPool&) = delete;

  FabricPacket* take() {
    if (free_ == nullptr) grow();
    FabricPacket* packet = free_;
    free_ = packet->next;
    --free_count_;
    return packet;
  }
  void give(FabricPacket* packet) noexcept {
    if (packet->block != nullptr) give_block(packet);
    if (packet->hops != nullptr) {
      give_hops(packet->hops);
      packet->hops = nullptr;
    }
    packet->next = free_;
    free_ = packet;
    ++free_count_;
  }
  wire::HopRecords* take_hops() {
    if (free_hops_ == nullptr) {
      hops_.push_back(std::make_unique<wire::HopRecords>());
      return hops_.back().get();
    }
    wire::HopRecords* records = free_hops_;
    free_hops_ = records->next;
    --free_hops_count_;
    records->next = nullptr;
    records->count = 0;
    return records;
  }
  // Takes back a list of records.
  void give_hops(wire::HopRecords* first) noexcept {
    while (first != nullptr) {
      wire::HopRecords* const next = first->next;
      first->next = free_hops_;
      free_hops_ = first;
      ++free_hops_count_;
      first = next;
    }
  }
  void set_header(FabricPacket* packet, const u8* header, u16 bytes) {
    packet->header_bytes = bytes;
    packet->block = nullptr;
    if (bytes == FabricPacket::kInlineBytes) {  // a data packet, and so the usual case
      std::memcpy(packet->inline_header, header, FabricPacket::kInlineBytes);
      return;
    }
    if (bytes > FabricPacket::kInlineBytes) packet->block = take_block(bytes);
    std::memcpy(packet->block != nullptr ? packet->block : packet->inline_header, header, bytes);
  }
  // Moves what this pool has more than it probably needs to `other`, if that is where its packets come from: up to
  // `count` packets, as many header blocks of each size, and as many records of telemetry.
  void share(std::size_t count, FabricPacketPool* other) {
    constexpr std::size_t kKept = 8'192;
    for (std::size_t i = 0; i < count && free_count_ > kKept; ++i) other->give(take());
    for (std::size_t i = 0; i < count && free_hops_count_ > kKept; ++i) other->give_hops(take_hops());
    for (const std::size_t size : {0u, 1u}) {
      std::vector<u8*>& free = free_blocks_[size];
      for (std::size_t i = 0; i < count && free.size() > kKept; ++i) {
        other->free_blocks_[size].push_back(free.back());
        free.pop_back();
      }
    }
  }
  // Moves all that is free here to `other`.
  void share_all(FabricPacketPool* other) {
    while (free_count_ != 0) other->give(take());
    while (free_hops_count_ != 0) other->give_hops(take_hops());
    for (const std::size_t size : {0u, 1u}) {
      std::vector<u8*>& free = free_blocks_[size];
      other->free_blocks_[size].insert(other->free_blocks_[size].end(), free.begin(), free.end());
      free.clear();
    }
  }
  std::size_t in_use() const noexcept { return slabs_.size() * kSlabPackets - free_count_; }
  std::size_t blocks_in_use() const noexcept {
    return blocks_[0].size() + blocks_[1].size() - free_blocks_[0].size() - free_blocks_[1].size();
  }
  std::size_t bytes_held() const noexcept {
    return slabs_.size() * kSlabPackets * sizeof(FabricPacket) + (blocks_[0].size() + blocks_[1].size()) * 64 +
           hops_.size() * sizeof(wire::HopRecords);
  }

 private:
  static constexpr std::size_t kSlabPackets = 512;
  static constexpr std::size_t kMediumBytes = 256;  // smaller of two block sizes; fits acknowledgments of a few paths

  struct alignas(64) Slab {
    FabricPacket packets[kSlabPackets];
  };
  void grow() {
    slabs_.push_back(std::make_unique<Slab>());
    for (FabricPacket& packet : slabs_.back()->packets) {
      packet.next = free_;
      packet.block = nullptr;
      packet.hops = nullptr;
      free_ = &packet;
    }
    free_count_ += kSlabPackets;
  }
  u8* take_block(u16 bytes) {
    std::vector<u8*>& free = free_blocks_[bytes > kMediumBytes ? 1 : 0];
    if (!free.empty()) {
      u8* block = free.back();
      free.pop_back();
      return block;
    }
    auto& kept = blocks_[bytes > kMediumBytes ? 1 : 0];
    kept.push_back(std::make_unique<u8[]>(bytes > kMediumBytes ? wire::kControlBytesMax : kMediumBytes));
    free.reserve(kept.size());
    return kept.back().get();
  }
  void give_block(FabricPacket* packet) noexcept {
    free_blocks_[packet->header_bytes > kMediumBytes ? 1 : 0].push_back(packet->block);
    packet->block = nullptr;
  }

  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<std::unique_ptr<u8[]>> blocks_[2];
  std::vector<u8*> free_blocks_[2];
  FabricPacket* free_ = nullptr;
  std::size_t free_count_ = 0;
  std::vector<std::unique_ptr<wire::HopRecords>> hops_;
  wire::HopRecords* free_hops_ = nullptr;
  std::size_t free_hops_count_ = 0;
};

}  // namespace weft::sim
