// Records of posted bursts: the send slots, send queue entries and registered memory that each burst uses until its
// completion.
#pragma once

#include <cstdint>
#include <vector>

#include "native/datapath/verbs/verbs_port.h"

namespace weft::datapath {

struct SendRecord {
  static constexpr std::uint32_t kSeveral = ~std::uint32_t{0};

  QueuePair* pair = nullptr;  // null: the record is free
  VerbsPort* port = nullptr;
  std::uint32_t peer = 0;
  std::uint32_t generation = 0;  // counts uses of the record: a late completion carries an older value
  // Id of the registered memory that the payload is read from; 0: none, kSeveral: more than one.
  std::uint32_t memory = 0;
  std::uint16_t requests = 0, slot_count = 0;
  std::uint8_t path = 0;
  std::uint32_t slots[wire::kMaxBurstSegments];

  void reads_from(std::uint32_t id) noexcept { memory = memory == 0 || memory == id ? id : kSeveral; }
};

class SendRecords {
 public:
  void reset(std::uint32_t count);

  // Whether a record, enough slots and enough send queue entries are free for a burst.
  bool has_room(const VerbsPort& port, const QueuePair& pair, std::size_t requests, std::size_t slots) const noexcept {
    return !free_.empty() && port.free_sends.size() >= slots && pair.sends_under_way + requests <= pair.sends_max();
  }
  // Takes a record, slots and queue entries. has_room() must have returned true.
  SendRecord* take(VerbsPort* port, QueuePair* pair, std::size_t requests, std::size_t slots) noexcept {
    SendRecord& record = records_[free_.back()];
    free_.pop_back();
    record.pair = pair;
    record.port = port;
    record.memory = 0;
    record.requests = static_cast<std::uint16_t>(requests);
    record.slot_count = static_cast<std::uint16_t>(slots);
    for (std::size_t i = 0; i < slots; ++i) {
      record.slots[i] = port->free_sends.back();
      port->free_sends.pop_back();
    }
    pair->sends_under_way += record.requests;
    return &record;
  }
  void give_back(SendRecord* record) noexcept;
  // Releases every record of a queue pair whose requests will not complete.
  void give_back_of(const QueuePair* pair) noexcept;

  // id_of() returns the id for the work requests of a record. completed() finds the record of a completion's id:
  // `foreign` is set if there is no such record, and null is returned if the record was released before.
  std::uint64_t id_of(const SendRecord& record) const noexcept {
    return std::uint64_t{record.generation} << 32 | static_cast<std::uint64_t>(&record - records_.data());
  }
  SendRecord* completed(std::uint64_t id, bool* foreign) noexcept {
    const std::uint64_t index = id & 0xFFFF'FFFF;
    *foreign = index >= records_.size();
    if (*foreign) return nullptr;
    SendRecord& record = records_[index];
    return record.pair != nullptr && record.generation == id >> 32 ? &record : nullptr;
  }

  // Calls `act` for each record in use. `act` may release records.
  template <class Act>
  void for_each(const Act& act) {
    for (SendRecord& record : records_) {
      if (record.pair != nullptr) act(record);
    }
  }

 private:
  std::vector<SendRecord> records_;
  std::vector<std::uint32_t> free_;
};

}  // namespace weft::datapath
