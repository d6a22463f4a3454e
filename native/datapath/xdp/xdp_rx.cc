// Takes received packets from the AF_XDP sockets, checks them, and delivers their datagrams. A datagram is valid only
// until the sink returns; then its chunk goes back to the kernel.
#include <time.h>

#include <algorithm>
#include <cstring>

#include "native/datapath/clock.h"
#include "native/datapath/xdp/xdp_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::uint32_t kTakenMax = 256;  // packets in one call, so that sending is not delayed
constexpr std::uint32_t kSocketRounds = 16;
constexpr std::uint32_t kNoPort = UINT32_MAX;

std::int64_t realtime_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::size_t XdpDatapath::rx_burst(RxSink* sink) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < queues_.size() && seen < kTakenMax; ++i) {
    seen += receive(queues_[next_queue_++ % queues_.size()].get(), sink);
  }
  if (seen == 0) {
    for (const auto& queue : queues_) {
      queue->socket.reap();
      queue->socket.wake();  // the driver may have run out of chunks after the last refill()
      if (queue->socket.has_queued()) flush(queue.get());  // what the kernel did not take at once
    }
  }
  // The UDP sockets receive little, and to look costs a system call.
  if (seen == 0 || ++rounds_ % kSocketRounds == 0) seen += udp_.rx_burst(sink);
  return seen;
}

std::size_t XdpDatapath::receive(Queue* queue, RxSink* sink) {
  xdp::Socket& socket = queue->socket;
  const std::uint32_t count = std::min(socket.rx.ready(), kTakenMax);
  if (count == 0) return 0;
  realtime_ahead_ns_ = realtime_ns() - now_ns();
  for (std::uint32_t i = 0; i < count; ++i) {
    const xdp::Descriptor packet = socket.rx.front();
    socket.rx.pop();
    if (!umem_.holds(packet.address, packet.bytes)) continue;
    take(queue, packet, sink);
    socket.give_back(packet.address);
  }
  socket.rx.release();
  socket.refill();
  return count;
}

void XdpDatapath::take(Queue* queue, const xdp::Descriptor& packet, RxSink* sink) {
  const bool continues = (packet.options & xdp::kContinues) != 0;
  const std::uint8_t* const bytes = umem_.at(packet.address);
  if (!continues && !queue->joining) {
    pass(bytes, packet.bytes, take_stamp(packet.address), sink);
    return;
  }
  if (!queue->joining) {
    queue->joined_bytes = 0;
    queue->joined_stamp_ns = take_stamp(packet.address);
  }
  queue->joining = continues;
  // A packet that is too long keeps a length that fits no further chunk, and is dropped at its end.
  const bool fits = queue->joined_bytes + packet.bytes <= queue->joined.size();
  if (fits) std::memcpy(queue->joined.data() + queue->joined_bytes, bytes, packet.bytes);
  queue->joined_bytes += packet.bytes;
  if (continues) return;
  if (queue->joined_bytes <= queue->joined.size()) {
    pass(queue->joined.data(), queue->joined_bytes, queue->joined_stamp_ns, sink);
  } else {
    ++counters_->malformed;
  }
}

// When the packet at this address arrived (CLOCK_REALTIME); 0: the driver left no room for the stamp.
std::int64_t XdpDatapath::take_stamp(std::uint64_t address) noexcept {
  xdp::ArrivalStamp stamp;
  if (address % xdp::kChunkBytes < sizeof stamp) return 0;
  std::uint8_t* const at = umem_.at(address) - sizeof stamp;
  std::memcpy(&stamp, at, sizeof stamp);
  if (stamp.mark != xdp::kStampMark) return 0;
  std::memset(at, 0, sizeof stamp.mark);
  return stamp.stamp_ns + realtime_ahead_ns_;
}

void XdpDatapath::pass(const std::uint8_t* frame, std::size_t bytes, std::int64_t stamp_ns, RxSink* sink) {
  xdp::ParsedFrame parsed;
  ++counters_->datagrams_received;
  ++counters_->bypass_received;
  const std::uint32_t port = xdp::parse_frame(frame, bytes, &parsed) ? port_of(parsed) : kNoPort;
  if (port == kNoPort) {
    ++counters_->malformed;
    return;
  }
  if (parsed.payload_bytes == 0) return;
  const std::uint8_t* const at = frame + parsed.payload_offset;
  wire::RxDatagram datagram = wire::datagram_at(at, parsed.payload_bytes, parsed.congestion_experienced);
  datagram.stamp_ns = stamp_ns;
  udp_.deliver(port, datagram, sink);
}

// The index of the port that the datagram is for.
std::uint32_t XdpDatapath::port_of(const xdp::ParsedFrame& frame) const noexcept {
  for (std::uint32_t next = first_port_[frame.to_port]; next != 0; next = next_port_[next - 1]) {
    const SocketAddress& address = udp_.port_address(next - 1);
    if (address.is_v6() != frame.v6) continue;
    const void* const ours = frame.v6 ? static_cast<const void*>(&address.v6.sin6_addr) : &address.v4.sin_addr;
    if (std::memcmp(ours, frame.to, frame.v6 ? 16 : 4) == 0) return next - 1;
  }
  return kNoPort;
}

}  // namespace weft::datapath
