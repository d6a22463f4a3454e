// Reserves slots and send queue entries for posted bursts, and releases them when the bursts' completions arrive.
#include "native/datapath/verbs/send_records.h"

namespace weft::datapath {

void SendRecords::reset(std::uint32_t count) {
  records_.assign(count, SendRecord{});
  free_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) free_[i] = i;
}

bool SendRecords::has_room(const VerbsPort& port, const QueuePair& pair, std::size_t requests,
                           std::size_t slots) const noexcept {
  return !free_.empty() && port.free_sends.size() >= slots && pair.sends_under_way + requests <= pair.sends_max();
}

SendRecord* SendRecords::take(VerbsPort* port, QueuePair* pair, std::size_t requests, std::size_t slots) noexcept {
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

void SendRecords::give_back(SendRecord* record) noexcept {
  record->pair->sends_under_way -= record->requests;
  for (std::size_t i = 0; i < record->slot_count; ++i) record->port->free_sends.push_back(record->slots[i]);
  record->pair = nullptr;
  ++record->generation;
  free_.push_back(static_cast<std::uint32_t>(record - records_.data()));
}

void SendRecords::give_back_of(const QueuePair* pair) noexcept {
  for (std::size_t i = 0; i < records_.size() && pair->sends_under_way != 0; ++i) {
    if (records_[i].pair == pair) give_back(&records_[i]);
  }
}

std::uint64_t SendRecords::id_of(const SendRecord& record) const noexcept {
  return std::uint64_t{record.generation} << 32 | static_cast<std::uint64_t>(&record - records_.data());
}

SendRecord* SendRecords::completed(std::uint64_t id, bool* foreign) noexcept {
  const std::uint64_t index = id & 0xFFFF'FFFF;
  *foreign = index >= records_.size();
  if (*foreign) return nullptr;
  SendRecord& record = records_[index];
  return record.pair != nullptr && record.generation == id >> 32 ? &record : nullptr;
}

}  // namespace weft::datapath
