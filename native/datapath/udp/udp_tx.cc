// Sends bursts: each burst is one message with UDP_SEGMENT, and consecutive bursts on one port share a sendmmsg call.
// Datagrams that the kernel refuses are dropped and counted; the protocol resends them.
#include <linux/udp.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/datapath/udp/staging.h"

namespace weft::datapath {
namespace {

std::size_t fill_vectors(const wire::TxBurst& burst, std::size_t from, std::size_t count, iovec* out) {
  std::size_t used = 0;
  for (std::size_t i = from; i < from + count; ++i) {
    out[used++] = {const_cast<std::uint8_t*>(burst.header(i)), burst.header_bytes};
    if (burst.payload[i].bytes != 0)
      out[used++] = {const_cast<std::uint8_t*>(burst.payload[i].data), burst.payload[i].bytes};
  }
  return used;
}

void fill_address(const SocketAddress& to, msghdr* header) {
  header->msg_name = const_cast<SocketAddress*>(&to);
  header->msg_namelen = to.bytes();
}

void fill_segment_size(std::uint32_t datagram_bytes, char* control, msghdr* header) {
  header->msg_control = control;
  header->msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
  cmsghdr* message = CMSG_FIRSTHDR(header);
  message->cmsg_level = IPPROTO_UDP;
  message->cmsg_type = UDP_SEGMENT;
  message->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto size = static_cast<std::uint16_t>(datagram_bytes);
  std::memcpy(CMSG_DATA(message), &size, sizeof size);
}

// Waits up to a millisecond for a full send buffer to drain.
void wait_writable(int descriptor) {
  pollfd waiting{descriptor, POLLOUT, 0};
  static_cast<void>(::poll(&waiting, 1, 1));
}

}  // namespace

void UdpDatapath::tx_burst(wire::TxBurst* const* bursts, std::size_t count) {
  items_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const wire::TxBurst& burst = *bursts[i];
    const bool routed = burst.peer < links_.size() && burst.path < links_[burst.peer].routes.size();
    if (routed) items_.push_back({&burst, &links_[burst.peer].routes[burst.path], i});
  }
  // Sorts the bursts by socket, so that those of one socket share a system call. Bursts of the last socket leave later
  // than their send time says, so each call begins with another socket; otherwise one path would always look slow.
  const auto ports = static_cast<std::uint32_t>(ports_.size());
  const std::uint32_t first = ports == 0 ? 0 : static_cast<std::uint32_t>(rounds_sent_++ % ports);
  const auto turn = [ports, first](const Item& item) { return (item.route->port + first) % ports; };
  std::sort(items_.begin(), items_.end(), [&turn](const Item& a, const Item& b) {  // std::stable_sort would allocate
    return std::pair(turn(a), a.place) < std::pair(turn(b), b.place);
  });
  for (std::size_t begin = 0, end; begin < items_.size(); begin = end) {
    for (end = begin + 1; end < items_.size() && end - begin < kTxMessages; ++end) {
      if (items_[end].route->port != items_[begin].route->port) break;
    }
    send_run(items_.data() + begin, end - begin);
  }
}

void UdpDatapath::send_run(const Item* items, std::size_t count) {
  Port& port = ports_[items[0].route->port];
  Staging& staging = *staging_;
  for (std::size_t i = 0; i < count; ++i) {
    const wire::TxBurst& burst = *items[i].burst;
    msghdr& header = staging.tx_headers[i].msg_hdr;
    header = msghdr{};
    fill_address(items[i].route->to, &header);
    header.msg_iov = staging.tx_vectors[i];
    header.msg_iovlen = fill_vectors(burst, 0, burst.count, staging.tx_vectors[i]);
    if (burst.count > 1) fill_segment_size(burst.datagram_bytes, staging.tx_control[i], &header);
  }
  bool waited = false;
  for (std::size_t done = 0; done < count;) {
    const wire::TxBurst& burst = *items[done].burst;
    if (burst.count > 1 && !port.trains) {
      send_singly(items[done++]);
      continue;
    }
    std::size_t run = 1;
    while (done + run < count && (port.trains || items[done + run].burst->count == 1)) ++run;
    ++counters_->calls;
    const int sent = ::sendmmsg(port.descriptor, staging.tx_headers + done, static_cast<unsigned>(run), MSG_NOSIGNAL);
    if (sent > 0) {
      std::int64_t datagrams = 0;
      for (const std::size_t end = done + static_cast<std::size_t>(sent); done < end; ++done)
        datagrams += static_cast<std::int64_t>(items[done].burst->count);
      counters_->datagrams_sent += datagrams;
      counters_->batch_datagrams.record(datagrams);
      continue;
    }
    if (errno == EINTR) continue;
    if ((errno == EAGAIN || errno == ENOBUFS) && !waited) {
      waited = true;
      wait_writable(port.descriptor);
      continue;
    }
    if (burst.count > 1 && (errno == EINVAL || errno == EMSGSIZE || errno == EIO || errno == ENOPROTOOPT)) {
      // The kernel refused GSO. EMSGSIZE: only this route cannot carry the train.
      port.trains = errno == EMSGSIZE;
      send_singly(items[done++]);
      continue;
    }
    counters_->host_drops += burst.count;
    ++done;
  }
}

void UdpDatapath::send_singly(const Item& item) {
  const Port& port = ports_[item.route->port];
  for (std::size_t i = 0; i < item.burst->count; ++i) {
    msghdr header{};
    iovec vectors[2];
    fill_address(item.route->to, &header);
    header.msg_iov = vectors;
    header.msg_iovlen = fill_vectors(*item.burst, i, 1, vectors);
    ++counters_->calls;
    if (::sendmsg(port.descriptor, &header, MSG_NOSIGNAL) >= 0) {
      ++counters_->datagrams_sent;
      counters_->batch_datagrams.record(1);
    } else {
      ++counters_->host_drops;
    }
  }
}

}  // namespace weft::datapath
