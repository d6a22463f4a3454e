// Buffers for the system calls of the UDP datapath (receive buffers, message headers, control messages). They are
// allocated once and hold no state between calls.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include "native/datapath/udp/udp_datapath.h"

namespace weft::datapath {

inline constexpr std::size_t kRxMessages = 4;    // trains received per system call; few enough to fit in the L2 cache
inline constexpr std::size_t kRxBytes = 65'536;  // the largest train that GRO delivers
inline constexpr std::size_t kTxMessages = 16;
inline constexpr std::size_t kControlBytes = 128;

struct UdpDatapath::Staging {
  alignas(64) std::uint8_t rx_bytes[kRxMessages][kRxBytes];
  alignas(8) char rx_control[kRxMessages][kControlBytes];
  mmsghdr rx_headers[kRxMessages];
  iovec rx_vectors[kRxMessages];
  alignas(8) char tx_control[kTxMessages][kControlBytes];
  mmsghdr tx_headers[kTxMessages];
  iovec tx_vectors[kTxMessages][2 * wire::kMaxBurstSegments];
};

}  // namespace weft::datapath
