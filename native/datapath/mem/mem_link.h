// Two ends in one process joined by rings, with seeded faults: the datapath without a kernel.
// Copies headers and passes payload by reference, so a payload must stay where it is until the other end has polled.
#pragma once

#include <cstdint>
#include <vector>

#include "native/datapath/faults.h"
#include "native/wire/burst.h"

namespace weft::datapath {

// One direction. Single-threaded: one thread steps both ends.
class MemRing {
 public:
  // Datagrams beyond the capacity are dropped and counted, as a full socket buffer does.
  MemRing(std::size_t capacity, const FaultRates& faults);

  void tx_burst(const wire::TxBurst& burst);
  // Hands over up to `most` datagrams; the path is the port.
  std::size_t rx_burst(std::size_t most, RxSink* sink);
  std::int64_t drops() const noexcept { return drops_; }
  const telemetry::EngineCells& fault_counters() const noexcept { return faults_.counters(); }

 private:
  struct DataCell {
    alignas(64) std::uint8_t header[wire::kDataBytes];
    wire::Payload payload;
    std::uint8_t path;
  };
  struct ControlCell {
    std::uint8_t bytes[wire::kControlBytesMax];
    std::uint16_t size;
    std::uint8_t path;
  };
  void pass(std::uint8_t path, const wire::RxDatagram& datagram, RxSink* sink);

  FaultInjector faults_;
  std::vector<DataCell> data_;
  std::vector<ControlCell> control_;
  std::size_t data_head_ = 0, data_tail_ = 0, control_head_ = 0, control_tail_ = 0;
  std::int64_t drops_ = 0;
};

}  // namespace weft::datapath
