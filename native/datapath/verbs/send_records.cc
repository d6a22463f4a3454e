// Releases the slots and send queue entries of posted bursts when their completions arrive.
#include "native/datapath/verbs/send_records.h"

namespace weft::datapath {

void SendRecords::reset(std::uint32_t count) {
  records_.assign(count, SendRecord{});
  free_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) free_[i] = i;
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

}  // namespace weft::datapath
