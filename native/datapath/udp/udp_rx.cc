// Receives datagrams into staging buffers and splits GRO trains. A datagram is valid only until the sink returns.
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "native/datapath/udp/staging.h"

namespace weft::datapath {
namespace {

constexpr std::uint8_t kEcnMask = 0x03, kCongestionExperienced = 0x03;

struct Control {
  std::size_t stride = 0;  // datagram size of a GRO train; 0: a single datagram
  bool marked = false;
  bool has_drops = false;
  std::uint32_t drops = 0;
  std::int64_t stamp_ns = 0;
};

Control read_control(msghdr* header) {
  Control found;
  for (cmsghdr* at = CMSG_FIRSTHDR(header); at != nullptr; at = CMSG_NXTHDR(header, at)) {
    if (at->cmsg_level == IPPROTO_UDP && at->cmsg_type == UDP_GRO) {
      int stride = 0;
      std::memcpy(&stride, CMSG_DATA(at), sizeof stride);
      found.stride = stride > 0 ? static_cast<std::size_t>(stride) : 0;
    } else if (at->cmsg_level == IPPROTO_IP && at->cmsg_type == IP_TOS) {
      found.marked = (*CMSG_DATA(at) & kEcnMask) == kCongestionExperienced;
    } else if (at->cmsg_level == IPPROTO_IPV6 && at->cmsg_type == IPV6_TCLASS) {
      int traffic_class = 0;
      std::memcpy(&traffic_class, CMSG_DATA(at), sizeof traffic_class);
      found.marked = (traffic_class & kEcnMask) == kCongestionExperienced;
    } else if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SO_RXQ_OVFL) {
      std::memcpy(&found.drops, CMSG_DATA(at), sizeof found.drops);
      found.has_drops = true;
    } else if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_TIMESTAMPNS) {
      timespec stamp;
      std::memcpy(&stamp, CMSG_DATA(at), sizeof stamp);
      found.stamp_ns = std::int64_t{stamp.tv_sec} * 1'000'000'000 + stamp.tv_nsec;
    }
  }
  return found;
}

}  // namespace

std::size_t UdpDatapath::rx_burst(RxSink* sink) {
  // Receives at most about a megabyte per call, so that acknowledgments and sending are not delayed. The kernel rotates
  // its list of ready sockets, so no socket is starved.
  epoll_event ready[4];
  const int count = ::epoll_wait(epoll_, ready, 4, 0);
  std::size_t seen = 0;
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u32 < ports_.size()) seen += receive(ready[i].data.u32, sink);
  }
  // Nothing arrived: releases the datagrams held back by fault injection, which would otherwise wait for later ones.
  if (seen == 0 && faults_.holds()) faults_.release_all(sink);
  return seen;
}

std::size_t UdpDatapath::receive(std::uint32_t index, RxSink* sink) {
  Staging& staging = *staging_;
  for (std::size_t i = 0; i < kRxMessages; ++i) {
    staging.rx_vectors[i] = {staging.rx_bytes[i], kRxBytes};
    msghdr& header = staging.rx_headers[i].msg_hdr;
    header = msghdr{};
    header.msg_iov = &staging.rx_vectors[i];
    header.msg_iovlen = 1;
    header.msg_control = staging.rx_control[i];
    header.msg_controllen = kControlBytes;
  }
  ++counters_->calls;
  const int got = ::recvmmsg(ports_[index].descriptor, staging.rx_headers, kRxMessages, MSG_DONTWAIT, nullptr);
  std::size_t seen = 0;
  for (int i = 0; i < got; ++i) {
    mmsghdr& message = staging.rx_headers[i];
    const Control control = read_control(&message.msg_hdr);
    if (control.has_drops && control.drops != ports_[index].drops_seen) {
      counters_->host_drops += control.drops - ports_[index].drops_seen;
      ports_[index].drops_seen = control.drops;
    }
    const std::size_t bytes = message.msg_len;
    const std::size_t stride = control.stride == 0 ? std::max<std::size_t>(bytes, 1) : control.stride;
    seen += (bytes + stride - 1) / stride;
    split(index, staging.rx_bytes[i], bytes, stride, control.marked, control.stamp_ns, sink);
  }
  counters_->datagrams_received += static_cast<std::int64_t>(seen);
  return seen;
}

void UdpDatapath::split(std::uint32_t index, const std::uint8_t* at, std::size_t bytes, std::size_t stride, bool marked,
                        std::int64_t stamp_ns, RxSink* sink) {
  for (std::size_t offset = 0; offset < bytes; offset += stride) {
    wire::RxDatagram datagram = wire::datagram_at(at + offset, std::min(stride, bytes - offset), marked);
    datagram.stamp_ns = stamp_ns;
    deliver(index, datagram, sink);
  }
}

}  // namespace weft::datapath
