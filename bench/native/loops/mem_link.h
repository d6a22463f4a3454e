// A datapath without a kernel: rings that connect two ends in one process. Headers are copied, but payload is passed by
// reference, so the payload must stay valid until the other end has polled.
#pragma once

#include <cstdint>
#include <vector>

#include "native/datapath/faults.h"

namespace weft::bench {

// One direction of a link. Not thread-safe: one thread runs both ends.
class MemRing {
 public:
  // Datagrams beyond `capacity` are dropped, as a full socket buffer would drop them.
  explicit MemRing(std::size_t capacity);

  void tx_burst(const wire::TxBurst& burst);
  // Delivers up to `most` datagrams. The sink gets the path's index as the port.
  std::size_t rx_burst(std::size_t most, datapath::RxSink* sink);

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

  std::vector<DataCell> data_;
  std::vector<ControlCell> control_;
  std::size_t data_head_ = 0, data_tail_ = 0, control_head_ = 0, control_tail_ = 0;
};

}  // namespace weft::bench
