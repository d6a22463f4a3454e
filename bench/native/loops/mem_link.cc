// Passes datagrams through rings in memory. Data packets and control packets have separate rings, so that a cell for
// data fits two cache lines. Control packets are delivered first. Capacities are powers of two.
#include "bench/native/loops/mem_link.h"

#include <cstring>

namespace weft::bench {
namespace {

constexpr std::size_t kControlCells = 256;

}  // namespace

MemRing::MemRing(std::size_t capacity) : data_(capacity), control_(kControlCells) {}

void MemRing::tx_burst(const wire::TxBurst& burst) {
  const bool is_data = burst.header(0)[3] == static_cast<std::uint8_t>(wire::Type::data);
  if (!is_data) {
    if (control_tail_ - control_head_ == control_.size()) return;
    ControlCell& cell = control_[control_tail_++ & (control_.size() - 1)];
    std::memcpy(cell.bytes, burst.headers, burst.header_bytes);
    cell.size = burst.header_bytes;
    cell.path = burst.path;
    return;
  }
  for (std::size_t i = 0; i < burst.count; ++i) {
    if (data_tail_ - data_head_ == data_.size()) continue;
    DataCell& cell = data_[data_tail_++ & (data_.size() - 1)];
    std::memcpy(cell.header, burst.header(i), wire::kDataBytes);
    cell.payload = burst.payload[i];
    cell.path = burst.path;
  }
}

std::size_t MemRing::rx_burst(std::size_t most, datapath::RxSink* sink) {
  std::size_t seen = 0;
  for (; control_head_ != control_tail_ && seen < most; ++seen) {
    const ControlCell& cell = control_[control_head_++ & (control_.size() - 1)];
    sink->on_datagram(cell.path, wire::datagram_at(cell.bytes, cell.size, false));
  }
  for (; data_head_ != data_tail_ && seen < most; ++seen) {
    const DataCell& cell = data_[data_head_++ & (data_.size() - 1)];
    const wire::RxDatagram datagram{cell.header, wire::kDataBytes, cell.payload.data, cell.payload.bytes, false};
    sink->on_datagram(cell.path, datagram);
  }
  return seen;
}

}  // namespace weft::bench
