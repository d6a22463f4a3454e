// Opens and closes the datapath, and sleeps. Sending is in xdp_tx.cc, receiving in xdp_rx.cc, interfaces and paths in
// xdp_link.cc.
#include "native/datapath/xdp/xdp_datapath.h"

#include <algorithm>
#include <utility>

namespace weft::datapath {
namespace {

// Chunks for received packets of all queues together, and for packets that are being sent: 64 MiB and 16 MiB.
constexpr std::uint32_t kRxChunksMax = 16'384, kTxChunks = 4096;

}  // namespace

XdpDatapath::XdpDatapath(const XdpOptions& options) : options_(options), udp_(options.udp) {
  const std::uint32_t queues = std::max(options.queues, 1u);
  rx_chunks_ = std::clamp(kRxChunksMax / queues, 64u, xdp::kRingEntries);
  first_port_.resize(1 << 16);
  kernel_bursts_.reserve(kTxBursts);
}

XdpDatapath::~XdpDatapath() {
  for (std::size_t port = 0; port < steered_; ++port) {
    const auto found = interfaces_.find(udp_.port_interface(port));
    if (found != interfaces_.end() && found->second.steering) {
      found->second.steering->remove_port(udp_.port_address(port));
    }
  }
  queues_.clear();
  for (auto& [index, interface] : interfaces_) {
    if (interface.steering) interface.steering->give_back(interface.row);
  }
}

bool XdpDatapath::open(std::string* error) {
  return udp_.open(error) && netlink_.open(error) && umem_.open(rx_chunks_ * options_.queues + kTxChunks, error);
}

std::string XdpDatapath::take_notice() {
  std::string all = std::exchange(notice_, std::string());
  const std::string sockets = udp_.take_notice();
  if (!sockets.empty()) all += (all.empty() ? "" : "; ") + sockets;
  return all;
}

void XdpDatapath::note(const std::string& line) { notice_ += (notice_.empty() ? "" : "; ") + line; }

std::int64_t XdpDatapath::buffer_bytes() const noexcept {
  constexpr std::uint32_t kRoom = xdp::kChunkBytes - xdp::kHeadroomBytes;
  const std::uint32_t frame_bytes = options_.segment_bytes + xdp::kHeadersBytesMax;
  const std::int64_t packets = rx_chunks_ / ((frame_bytes + kRoom - 1) / kRoom);
  return std::min<std::int64_t>(udp_.buffer_bytes(), packets * options_.segment_bytes);
}

}  // namespace weft::datapath
